#include "tests/cpp/mpi/team.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/config/launch.h"
#include "csrc/plugin/mpi_library.h"
#include "tests/support/ranks.h"

namespace hvl::mpi::test {
namespace {

// Stands for a rank that is another process.
class Elsewhere final : public collective::Backend {
 public:
  std::string_view name() const override { return "elsewhere"; }
  Status Allreduce(std::span<const collective::ReducePiece>, const tensor::ReduceSpec&) override {
    return Wrong();
  }
  Status Broadcast(std::span<const collective::BroadcastPiece>, int) override { return Wrong(); }
  Status Allgather(std::span<const collective::GatherPiece>) override { return Wrong(); }
  Status Barrier() override { return Wrong(); }
  Status Reducescatter(std::span<const collective::ScatterPiece>,
                       const tensor::ReduceSpec&) override {
    return Wrong();
  }
  Status Alltoall(std::span<const collective::ExchangePiece>) override { return Wrong(); }
  Result<std::unique_ptr<Backend>> Split(std::span<const int>) override { return Wrong(); }
  void Abort(const Status&) override {}
  Result<SharedBuffer> Allocate(std::size_t) override {
    return Status(StatusCode::kNotSupported, "no memory of another process");
  }

 private:
  static Status Wrong() { return {StatusCode::kInternal, "this rank is another process"}; }
};

class Watchdog {
 public:
  explicit Watchdog(collective::Backend& backend)
      : watcher_([this, &backend] {
          if (done_.get_future().wait_for(hvl::test::kHangLimit) == std::future_status::ready)
            return;
          backend.Abort({StatusCode::kTimeout, "the test gave up waiting"});
        }) {}
  ~Watchdog() { done_.set_value(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::promise<void> done_;
  std::jthread watcher_;
};

}  // namespace

Result<plugin::Mpi*> OpenPlugin() { return plugin::OpenMpi(HVL_TEST_PLUGINS, "", Logger()); }

plugin::MpiOptions WithPlace(plugin::MpiOptions options) {
  const config::ProcessEnv environment;
  Result<config::Config> place = config::Config::Parse(environment, nullptr);
  REQUIRE(place.ok());
  const Result<config::Launch> launch = config::FindLaunch(environment, &*place);
  INFO(launch.status().ToString());
  REQUIRE(launch.ok());
  options.rank = place->size - 1 - place->rank;
  options.size = place->size;
  static int number = 0;  // of the session: the same on every rank
  options.session = Format("session {}", ++number);
  options.start_timeout = hvl::test::kHangLimit;
  options.yields = true;
  return options;
}

Team::Team(plugin::MpiOptions options) : random_(Catch::rngSeed()) {
  const Result<plugin::Mpi*> mpi = OpenPlugin();
  INFO(mpi.status().ToString());
  REQUIRE(mpi.ok());
  options = WithPlace(std::move(options));
  rank_ = options.rank;
  if (!options.group_ends.empty()) options.group_ends.back() = options.size;
  world_.group_ends = options.group_ends;
  for (int rank = 0; rank < options.size; ++rank) world_.push_back(std::make_unique<Elsewhere>());
  auto backend = mpi.value()->CreateBackend(std::move(options), Logger());
  INFO(backend.status().ToString());
  REQUIRE(backend.ok());
  world_[static_cast<std::size_t>(rank_)] = std::move(backend).value();
}

// As at the end of a session.
Team::~Team() { backend().Abort({StatusCode::kAborted, "the test has ended"}); }

void Team::RunAndCheck(const Scenarios& scenarios) {
  const Watchdog watchdog(backend());
  for (const std::unique_ptr<Scenario>& scenario : scenarios) {
    INFO("rank " << rank_ << " of " << size() << ", --rng-seed " << Catch::rngSeed() << ": "
                 << scenario->description());
    const Status status = scenario->Run(backend(), rank_);
    INFO(status.ToString());
    REQUIRE(status.ok());
    CHECK(scenario->AsExpected(rank_));
  }
}

void Team::RunAndCheck(std::unique_ptr<Scenario> scenario) {
  Scenarios scenarios;
  scenarios.push_back(std::move(scenario));
  RunAndCheck(scenarios);
}

}  // namespace hvl::mpi::test
