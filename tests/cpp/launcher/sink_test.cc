// Writing to somebody who may be slow or gone, without waiting.
#include "launcher/sink.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <random>

#include "csrc/net/fd.h"

namespace hvl::launcher {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    reader = net::UniqueFd(ends[0]);
    writer = net::UniqueFd(ends[1]);
  }
  /// What is there now, at most `limit` bytes.
  std::string Read(std::size_t limit) const {
    std::string text(limit, '\0');
    REQUIRE(::fcntl(reader.get(), F_SETFL, O_NONBLOCK) == 0);
    const ssize_t count = ::read(reader.get(), text.data(), limit);
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }

  net::UniqueFd reader;
  net::UniqueFd writer;
};

TEST_CASE("what is written comes out, and nothing is left to write") {
  const Pipe pipe;
  Sink sink(pipe.writer.get());
  *sink.buffer() += "hello";
  sink.Flush();
  CHECK(sink.backlog_bytes() == 0);
  CHECK(pipe.Read(100) == "hello");
}

TEST_CASE("a full pipe does not block, and every byte comes out in order in the end") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const Pipe pipe;
  Sink sink(pipe.writer.get());
  std::string sent;
  std::string received;
  for (int round = 0; round < 200; ++round) {
    std::string part(random() % 20000, '\0');
    for (char& c : part) c = static_cast<char>(random());
    sent += part;
    *sink.buffer() += part;
    sink.Flush();
    received += pipe.Read(random() % 15000);
  }
  CHECK(sink.backlog_bytes() > 0);  // or this would not have tested much
  while (sink.backlog_bytes() > 0) {
    received += pipe.Read(10000);
    sink.Flush();
  }
  received += pipe.Read(1 << 20);
  CHECK(sink.error() == 0);
  CHECK((received == sent));
}

TEST_CASE("a reader that is gone is an error, and what follows is dropped") {
  Pipe pipe;
  ::signal(SIGPIPE, SIG_IGN);
  Sink sink(pipe.writer.get());
  pipe.reader.Reset();
  *sink.buffer() += "hello";
  sink.Flush();
  CHECK(sink.error() == EPIPE);
  *sink.buffer() += "more";
  sink.Flush();
  CHECK(sink.backlog_bytes() == 0);
}

TEST_CASE("an abandoned sink drops what it has and what comes") {
  const Pipe pipe;
  Sink sink(pipe.writer.get());
  *sink.buffer() += std::string(100000, 'x');
  sink.Flush();
  CHECK(sink.backlog_bytes() > 0);
  sink.Abandon();
  CHECK(sink.backlog_bytes() == 0);
  CHECK(sink.error() == ECANCELED);
}

TEST_CASE("the two ends of one pipe are the same file, two pipes are not") {
  const Pipe one;
  const Pipe other;
  CHECK(SameFile(one.writer.get(), one.reader.get()));
  CHECK_FALSE(SameFile(one.writer.get(), other.writer.get()));
  CHECK_FALSE(SameFile(one.writer.get(), -1));
}

}  // namespace
}  // namespace hvl::launcher
