// Logger and sinks: levels, the line format, lazy arguments, and whole lines on standard error.
#include "csrc/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace hvl {
namespace {

struct Line {
  LogLevel level;
  std::string text;
};

class MemorySink final : public LogSink {
 public:
  void Write(LogLevel level, std::string_view line) override {
    lines.push_back({level, std::string(line)});
  }
  std::vector<Line> lines;
};

/// Standard error goes into a pipe until Take().
class CapturedStderr {
 public:
  CapturedStderr() {
    REQUIRE(::pipe2(pipe_, O_CLOEXEC) == 0);
    saved_ = ::dup(STDERR_FILENO);
    REQUIRE(saved_ >= 0);
    REQUIRE(::dup2(pipe_[1], STDERR_FILENO) == STDERR_FILENO);
  }
  ~CapturedStderr() { Restore(); }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  /// What was written; at most what the pipe holds (64 KiB) may have been.
  std::string Take() {
    Restore();
    std::string text;
    char chunk[4096];
    for (ssize_t got; (got = ::read(pipe_[0], chunk, sizeof(chunk))) > 0;) {
      text.append(chunk, static_cast<std::size_t>(got));
    }
    ::close(pipe_[0]);
    return text;
  }

 private:
  void Restore() {
    if (saved_ < 0) return;
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(pipe_[1]);
    saved_ = -1;
  }

  int pipe_[2] = {-1, -1};
  int saved_ = -1;
};

TEST_CASE("a line is time, identity, level, room and text") {
  const auto sink = std::make_shared<MemorySink>();
  const Logger logger(sink, LogLevel::kInfo, "1/4", false);
  HVL_LOG(logger, kWarning, "net", "peer {} closed", 3);
  REQUIRE(sink->lines.size() == 1);
  CHECK(sink->lines[0].level == LogLevel::kWarning);
  CHECK_THAT(sink->lines[0].text,
             Catch::Matches(
                 R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[1/4\] WARNING net: peer 3 closed)"));
}

TEST_CASE("the time can be left out") {
  const auto sink = std::make_shared<MemorySink>();
  const Logger logger(sink, LogLevel::kTrace, "0/1", true);
  HVL_LOG(logger, kError, "plan", "no");
  REQUIRE(sink->lines.size() == 1);
  CHECK(sink->lines[0].text == "[0/1] ERROR plan: no");
}

TEST_CASE("lines below the level are dropped, whichever way they come") {
  const auto sink = std::make_shared<MemorySink>();
  const Logger logger(sink, LogLevel::kWarning, "0/1", true);
  HVL_LOG(logger, kInfo, "plan", "quiet");
  logger.Write(LogLevel::kDebug, "plan", "quiet");
  CHECK(sink->lines.empty());
  HVL_LOG(logger, kWarning, "plan", "at the level");
  HVL_LOG(logger, kFatal, "plan", "above");
  CHECK(sink->lines.size() == 2);
}

TEST_CASE("level off drops everything, and so does a default logger") {
  const auto sink = std::make_shared<MemorySink>();
  const Logger off(sink, LogLevel::kOff, "0/1", true);
  HVL_LOG(off, kFatal, "plan", "nobody hears");
  CHECK(sink->lines.empty());
  const Logger none;
  CHECK_FALSE(none.Enabled(LogLevel::kFatal));
  HVL_LOG(none, kFatal, "plan", "nobody hears");
}

TEST_CASE("arguments of a dropped line are not evaluated") {
  const Logger logger(std::make_shared<MemorySink>(), LogLevel::kError, "0/1", true);
  int evaluated = 0;
  HVL_LOG(logger, kDebug, "plan", "{}", ++evaluated);
  CHECK(evaluated == 0);
  HVL_LOG(logger, kError, "plan", "{}", ++evaluated);
  CHECK(evaluated == 1);
}

TEST_CASE("every level has a name") {
  CHECK(LogLevelName(LogLevel::kTrace) == "TRACE");
  CHECK(LogLevelName(LogLevel::kDebug) == "DEBUG");
  CHECK(LogLevelName(LogLevel::kInfo) == "INFO");
  CHECK(LogLevelName(LogLevel::kWarning) == "WARNING");
  CHECK(LogLevelName(LogLevel::kError) == "ERROR");
  CHECK(LogLevelName(LogLevel::kFatal) == "FATAL");
  CHECK(LogLevelName(LogLevel::kOff) == "OFF");
}

TEST_CASE("standard error receives whole lines, also from many threads") {
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  CapturedStderr captured;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        const Logger logger(StderrSink(), LogLevel::kInfo, Format("{}/4", thread), true);
        for (int line = 0; line < kLines; ++line) HVL_LOG(logger, kInfo, "t", "line {:>20}", line);
      });
    }
  }
  const std::string text = captured.Take();
  std::size_t start = 0;
  int count = 0;
  for (std::size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    CHECK_THAT(text.substr(start, end - start), Catch::Matches(R"(\[\d/4\] INFO t: line +\d+)"));
    ++count;
  }
  CHECK(start == text.size());
  CHECK(count == kThreads * kLines);
}

}  // namespace
}  // namespace hvl
