// The way from the ranks' pipes to the screen and the log files, where time decides: folding.
#include "launcher/output.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/fold.h"

namespace hvl::launcher {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    reader = net::UniqueFd(ends[0]);
    writer = net::UniqueFd(ends[1]);
  }
  /// What is there now.
  std::string Read() const {
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(reader.get(), bytes.data(), bytes.size());
    return {bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
  }

  net::UniqueFd reader;
  net::UniqueFd writer;
};

OutputOptions Folding(int rank_count) {
  OutputOptions options;
  options.rank_count = rank_count;
  options.fold = true;
  return options;
}

/// A job whose ranks are this test, with a screen that it can read.
class Job {
 public:
  explicit Job(const OutputOptions& options) {
    Result<Poller> poller = Poller::Create();
    REQUIRE(poller.ok());
    poller_ = std::make_unique<Poller>(std::move(*poller));
    output_ = std::make_unique<Output>(options, out_.writer.get(), err_.writer.get(), poller_.get(),
                                       clock_, [](bool, bool) {});
    const Status opened = output_->OpenLogs();
    INFO(opened.ToString());
    REQUIRE(opened.ok());
  }

  void Print(int rank, std::string_view text, bool is_stderr = false) {
    output_->Feed(rank, is_stderr, text);
  }
  void After(Duration time) {
    clock_.Advance(time);
    output_->OnTime(clock_.Now());
  }
  std::string Out() const { return out_.Read(); }
  std::string Err() const { return err_.Read(); }
  Output& output() { return *output_; }
  TimePoint now() const { return clock_.Now(); }

 private:
  ManualClock clock_;
  Pipe out_;
  Pipe err_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Output> output_;
};

TEST_CASE("without folding every rank's line is shown at once") {
  OutputOptions options = Folding(2);
  options.fold = false;
  Job job(options);
  job.Print(0, "same\n");
  CHECK(job.Out() == "[0]<stdout>:same\n");
  job.Print(1, "same\n");
  CHECK(job.Out() == "[1]<stdout>:same\n");
  CHECK_FALSE(job.output().deadline().has_value());
}

TEST_CASE("folded lines are shown once, and the log file of each rank has them") {
  const std::string folder = std::filesystem::temp_directory_path() / Format("fold.{}", ::getpid());
  {
    OutputOptions options = Folding(2);
    options.log_dir = folder;
    Job job(options);
    job.Print(0, "same\nmine\n");
    CHECK(job.Out().empty());
    job.Print(1, "same\n");
    CHECK(job.Out() == "[all 2]<stdout>:same\n");
    for (const int rank : {0, 1}) {
      std::stringstream log;
      log << std::ifstream(Format("{}/rank.{}/stdout", folder, rank)).rdbuf();
      CHECK(log.str() == (rank == 0 ? "same\nmine\n" : "same\n"));
    }
    CHECK(job.output().deadline() == job.now() + kFoldWindow);
    job.After(kFoldWindow);
    CHECK(job.Out() == "[0]<stdout>:mine\n");
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("ranks that are not shown are not waited for") {
  OutputOptions options = Folding(4);
  options.shown.ranges = {{1, 2}};
  Job job(options);
  job.Print(0, "a\n");
  job.Print(2, "a\n");
  job.Print(1, "a\n");
  CHECK(job.Out() == "[1, 2]<stdout>:a\n");
}

TEST_CASE("what hvlrun says comes after all that ranks have printed before") {
  Job job(Folding(2));
  job.Print(0, "a\n");
  job.Print(1, "why\n", true);
  CHECK((job.Out() + job.Err()).empty());
  job.output().Say("failed");
  CHECK(job.Out() == "[0]<stdout>:a\n");
  CHECK(job.Err() == "[1]<stderr>:why\nhvlrun: failed\n");
}

TEST_CASE("what waits for other ranks is shown when there is nothing more to come") {
  Job job(Folding(2));
  job.Print(1, "a\n");
  job.output().ShowHeld();
  CHECK(job.Out() == "[1]<stdout>:a\n");
  CHECK_FALSE(job.output().deadline().has_value());
}

TEST_CASE("a prompt is shown in its time, behind the lines of its rank") {
  OutputOptions options = Folding(2);
  options.prompt_rank = 0;
  Job job(options);
  job.Print(1, "other\n");
  job.Print(0, "hello\nName? ");
  CHECK(job.Out().empty());
  job.After(std::chrono::milliseconds(50));
  CHECK(job.Out() == "[1]<stdout>:other\n[0]<stdout>:hello\n[0]<stdout>:Name? ");
}

}  // namespace
}  // namespace hvl::launcher
