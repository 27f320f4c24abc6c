#include "csrc/engine/engine.h"

#include <utility>

#include "csrc/base/abandon.h"
#include "csrc/engine/core.h"

namespace hvl::engine {
namespace {

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  // In a forked child nothing may be taken apart: its threads do not exist there, and its links are
  // the parent's. The child leaks its copy.
  ~EngineImpl() override {
    if (core_->in_child()) {
      Abandon(std::move(core_));
      return;
    }
    core_->Stop();
  }

  Result<Handle> Submit(Operation&& operation, bool caller_waits) override {
    return core_->Submit(std::move(operation), caller_waits);
  }
  Result<Handle> Submit(std::shared_ptr<const Operation> operation, bool caller_waits) override {
    return core_->Submit(std::move(operation), caller_waits);
  }
  Result<ProcessSetId> AddProcessSet(std::vector<int> ranks,
                                     const Interrupted& interrupted) override {
    return core_->AddProcessSet(std::move(ranks), interrupted);
  }
  Status RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted) override {
    return core_->RemoveProcessSet(id, interrupted);
  }
  Result<std::vector<int>> ProcessSetRanks(ProcessSetId id) const override {
    return core_->ProcessSetRanks(id);
  }
  Result<SharedBuffer> Allocate(std::size_t bytes) override { return core_->Allocate(bytes); }
  void Stop() override { core_->Stop(); }
  Status health() const override { return core_->health(); }
  SessionCounters counters() const override { return core_->counters(); }
  void SetTrace(std::shared_ptr<trace::Sink> sink, bool mark_cycles) override {
    core_->SetTrace(std::move(sink), mark_cycles);
  }
  bool in_child() const override { return core_->in_child(); }

 private:
  std::shared_ptr<Core> core_;  // shared with the handles, which may outlive the engine
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Start(Options options, std::unique_ptr<net::Mesh> mesh,
                                              std::unique_ptr<plan::Planner> planner,
                                              std::unique_ptr<collective::Backend> backend,
                                              Logger logger, const Clock& clock) {
  auto core = std::make_shared<Core>(std::move(options), std::move(mesh), std::move(planner),
                                     std::move(backend), std::move(logger), clock);
  if (Status status = core->StartThreads(); !status.ok()) {
    core->Stop();
    return status;
  }
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(core)));
}

}  // namespace hvl::engine
