#include "csrc/engine/state_pool.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace hvl::engine {
namespace {

constexpr std::size_t kBytes = 600;

#ifndef __SANITIZE_ADDRESS__  // with it nothing is kept
TEST_CASE("memory that was given back is taken again, and not twice") {
  StatePool pool;
  std::vector<void*> taken;
  for (int i = 0; i < 100; ++i) taken.push_back(pool.Take(kBytes));
  const std::set<void*> before(taken.begin(), taken.end());
  CHECK(before.size() == taken.size());
  for (void* const block : taken) pool.GiveBack(block);
  std::set<void*> again;
  for (std::size_t i = 0; i < taken.size(); ++i) again.insert(pool.Take(kBytes));
  CHECK(again == before);
  for (void* const block : again) pool.GiveBack(block);
}
#endif

TEST_CASE("threads that take and give back at the same time never share a block") {
  constexpr int kThreads = 4, kRounds = 2000, kHeld = 20;
  StatePool pool;
  std::atomic<int> shared{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&pool, &shared, thread] {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<unsigned char*> held;
        for (int i = 0; i < kHeld; ++i) {
          held.push_back(static_cast<unsigned char*>(pool.Take(kBytes)));
          std::memset(held.back(), thread, kBytes);
        }
        for (unsigned char* const block : held) {
          if (block[0] != thread || block[kBytes - 1] != thread) ++shared;
          pool.GiveBack(block);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(shared == 0);
}

TEST_CASE("an object from the pool keeps it") {
  struct Counted {
    explicit Counted(int& count) : alive(count) { ++alive; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() { --alive; }
    int& alive;
  };
  int alive = 0;
  auto pool = std::make_shared<StatePool>();
  const std::weak_ptr<StatePool> watched = pool;
  auto object = std::allocate_shared<Counted>(StateAllocator<Counted>(std::move(pool)), alive);
  CHECK(alive == 1);
  CHECK_FALSE(watched.expired());
  object.reset();
  CHECK(alive == 0);
  CHECK(watched.expired());
}

}  // namespace
}  // namespace hvl::engine
