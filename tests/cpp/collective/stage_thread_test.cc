// One stage of an operation on a thread of its own.
#include "csrc/collective/stage_thread.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace hvl::collective {
namespace {

TEST_CASE("each step runs once, in order, on another thread, after it was released") {
  std::vector<std::size_t> steps;
  std::vector<int> caller_wrote(3);
  std::thread::id thread;
  auto stage = StageThread::Start([&](std::size_t number) {
    thread = std::this_thread::get_id();
    if (caller_wrote[number] != 1) return Status(StatusCode::kInternal, "too early");
    steps.push_back(number);
    return Status::Ok();
  });
  REQUIRE(stage.ok());
  for (std::size_t number = 0; number < 3; ++number) {
    caller_wrote[number] = 1;
    (*stage)->Release();
    if (number > 0) CHECK((*stage)->Await(number - 1).ok());
  }
  CHECK((*stage)->Await(2).ok());
  CHECK(steps == std::vector<std::size_t>{0, 1, 2});
  CHECK(thread != std::this_thread::get_id());
}

TEST_CASE("after a step that fails no other one begins, and who waits hears why") {
  const Status cause(StatusCode::kUnavailable, "rank 3 has gone", 3);
  int steps = 0;
  auto stage = StageThread::Start([&](std::size_t) -> Status {
    ++steps;
    return Status(cause);
  });
  REQUIRE(stage.ok());
  (*stage)->Release();
  (*stage)->Release();
  CHECK((*stage)->Await(1) == cause);
  CHECK((*stage)->Await(0) == cause);
  stage->reset();
  CHECK(steps == 1);
}

TEST_CASE("a stage ends without the steps that nobody has released") {
  int steps = 0;
  {
    auto stage = StageThread::Start([&](std::size_t) {
      ++steps;
      return Status::Ok();
    });
    REQUIRE(stage.ok());
  }
  CHECK(steps == 0);
}

}  // namespace
}  // namespace hvl::collective
