#include "tests/cpp/sim/mutants.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/wire/codec.h"

namespace hvl::sim {
namespace {

using plan::Effects;
using plan::Planner;

/// What a mutant changes: what goes in, or what comes out, on one rank.
struct Bug {
  std::function<void(int rank, plan::Submission& submission)> on_submit;
  std::function<void(int rank, Effects& effects)> on_effects;
  std::function<bool(const wire::Message& message)> loses_frame;
  std::function<void(wire::Decide& decide)> on_decide;
  bool deaf_to_ends = false;
  bool ignores_leaders = false;
  bool never_ticks = false;
  bool forgets_batches = false;
  bool hides_waits = false;
  bool blocks_always = false;
};

class BuggyPlanner final : public Planner {
 public:
  BuggyPlanner(int rank, std::unique_ptr<Planner> inner, Bug bug)
      : rank_(rank), inner_(std::move(inner)), bug_(std::move(bug)) {}

  void Submit(plan::Submission&& submission, TimePoint now, Effects& effects) override {
    if (bug_.on_submit) bug_.on_submit(rank_, submission);
    inner_->Submit(std::move(submission), now, effects);
    Spoil(effects);
  }
  void Flush(TimePoint now, Effects& effects) override {
    inner_->Flush(now, effects);
    Spoil(effects);
  }
  void Receive(int from, std::span<const std::byte> frame, TimePoint now,
               Effects& effects) override {
    if (bug_.loses_frame) {
      const Result<wire::Message> message = wire::Decode(frame);
      if (message.ok() && bug_.loses_frame(*message)) return;
    }
    wire::Bytes changed;
    if (bug_.on_decide && rank_ == 1) {
      Result<wire::Message> message = wire::Decode(frame);
      if (auto* decide = message.ok() ? std::get_if<wire::Decide>(&*message) : nullptr) {
        bug_.on_decide(*decide);
        frame = changed = wire::Encode(*decide);
      }
    }
    inner_->Receive(from, frame, now, effects);
    Spoil(effects);
  }
  void BatchFinished(std::uint64_t sequence, TimePoint now, Effects& effects) override {
    if (bug_.forgets_batches) return;
    inner_->BatchFinished(sequence, now, effects);
    Spoil(effects);
  }
  void DataPlaneFailed(const Status& cause, TimePoint now, Effects& effects) override {
    if (bug_.deaf_to_ends) return;
    inner_->DataPlaneFailed(cause, now, effects);
    Spoil(effects);
  }
  void PeerLost(int rank, const Status& cause, TimePoint now, Effects& effects) override {
    if (bug_.deaf_to_ends) return;
    const int culprit = bug_.ignores_leaders ? rank : cause.culprit_rank();
    inner_->PeerLost(rank, {cause.code(), cause.message(), culprit}, now, effects);
    Spoil(effects);
  }
  void Leave(const Status& cause, TimePoint now, Effects& effects) override {
    inner_->Leave(cause, now, effects);
    Spoil(effects);
  }
  void Tick(TimePoint now, Effects& effects) override {
    inner_->Tick(now, effects);
    Spoil(effects);
  }
  std::optional<TimePoint> next_deadline() const override {
    return bug_.never_ticks ? std::nullopt : inner_->next_deadline();
  }
  bool gathering() const override { return inner_->gathering(); }
  std::size_t needed_submissions() const override { return inner_->needed_submissions(); }
  std::size_t remembered_names() const override { return inner_->remembered_names(); }
  void SetTracing(bool on) override { inner_->SetTracing(on); }
  void Awaited(ProcessSetId set, std::string_view name, plan::Waiter waiter,
               TimePoint now) override {
    if (bug_.blocks_always) waiter = plan::Waiter::kAlone;
    if (!bug_.hides_waits) inner_->Awaited(set, name, waiter, now);
  }
  const plan::PlanCounters& plan_counters() const override { return inner_->plan_counters(); }

 private:
  void Spoil(Effects& effects) {
    if (bug_.on_effects) bug_.on_effects(rank_, effects);
  }

  const int rank_;
  const std::unique_ptr<Planner> inner_;
  const Bug bug_;
};

Mutant Make(const char* name, Bug bug) {
  return {name, [bug](int rank, int size, std::uint64_t generation, plan::Options options) {
            return std::make_unique<BuggyPlanner>(
                rank, Planner::Create(rank, size, generation, options), bug);
          }};
}

Mutant Output(const char* name, std::function<void(int rank, Effects& effects)> spoil) {
  Bug bug;
  bug.on_effects = std::move(spoil);
  return Make(name, std::move(bug));
}

/// A change of the options that every planner gets.
Mutant Options(const char* name, std::function<void(int rank, plan::Options& options)> change) {
  return {name, [change](int rank, int size, std::uint64_t generation, plan::Options options) {
            change(rank, options);
            return Planner::Create(rank, size, generation, options);
          }};
}

void AddBatchMutants(std::vector<Mutant>& mutants) {
  mutants.push_back(Output("swaps two batches on one rank", [](int rank, Effects& effects) {
    if (rank != 1 || effects.run.size() < 2) return;
    std::swap(effects.run[0], effects.run[1]);
    std::swap(effects.run[0].sequence, effects.run[1].sequence);
  }));
  mutants.push_back(Output("loses a batch", [](int rank, Effects& effects) {
    if (rank == 1 && !effects.run.empty() && effects.run.back().sequence == 3) {
      effects.run.pop_back();
    }
  }));
  mutants.push_back(Output("runs a batch twice", [](int rank, Effects& effects) {
    if (rank == 1 && !effects.run.empty() && effects.run.back().sequence == 2) {
      effects.run.push_back(effects.run.back());
    }
  }));
  mutants.push_back(Output("fuses what does not fit", [](int, Effects& effects) {
    if (effects.run.size() < 2) return;
    auto& first = effects.run[0].entries;
    first.insert(first.end(), effects.run[1].entries.begin(), effects.run[1].entries.end());
    effects.run.erase(effects.run.begin() + 1);
    for (std::size_t i = 1; i < effects.run.size(); ++i) --effects.run[i].sequence;
  }));
  mutants.push_back(Output("reorders a batch on one rank", [](int rank, Effects& effects) {
    if (rank != 1) return;
    for (plan::Batch& batch : effects.run) std::reverse(batch.entries.begin(), batch.entries.end());
  }));
  mutants.push_back(Output("mixes up the dimensions of ranks", [](int, Effects& effects) {
    for (plan::Batch& batch : effects.run) {
      for (plan::BatchEntry& entry : batch.entries) {
        std::reverse(entry.first_dims.begin(), entry.first_dims.end());
      }
    }
  }));
}

void AddSetMutants(std::vector<Mutant>& mutants) {
  mutants.push_back(Output("gives every rank the batches of sets", [](int rank, Effects& effects) {
    for (plan::Batch& batch : effects.run) {
      const auto& ranks = batch.spec.ranks;
      if (batch.spec.kind != OpKind::kProcessSet || ranks.empty()) continue;
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
        plan::Batch extra = batch;
        extra.spec.kind = OpKind::kBarrier;
        extra.spec.ranks.clear();
        ++extra.sequence;
        effects.run.push_back(std::move(extra));
        return;
      }
    }
  }));
  mutants.push_back(Output("runs operations of sets in the world", [](int, Effects& effects) {
    for (plan::Batch& batch : effects.run) {
      if (batch.spec.kind != OpKind::kProcessSet) batch.spec.process_set = kWorldSet;
    }
  }));
  mutants.push_back(Output("loses a batch of a set", [](int rank, Effects& effects) {
    if (rank == 0) return;
    std::erase_if(effects.run, [](const plan::Batch& batch) {
      return batch.spec.kind != OpKind::kProcessSet && batch.spec.process_set != kWorldSet;
    });
  }));
  mutants.push_back(Output("contributes too few zeros", [](int, Effects& effects) {
    for (plan::Batch& batch : effects.run) {
      for (plan::BatchEntry& entry : batch.entries) {
        if (entry.zeros && *entry.zeros > 0) --*entry.zeros;
      }
    }
  }));
  mutants.push_back(Output("tells ranks different last ones", [](int rank, Effects& effects) {
    for (plan::Batch& batch : effects.run) {
      if (batch.spec.kind == OpKind::kJoin) batch.entries[0].first_dims = {rank};
    }
  }));
}

/// A change of what rank 1 hears in decisions.
Mutant Hearing(const char* name, std::function<void(wire::Decide& decide)> change) {
  Bug bug;
  bug.on_decide = std::move(change);
  return Make(name, std::move(bug));
}

void AddPlanMutants(std::vector<Mutant>& mutants) {
  mutants.push_back(Output("does not stop at a gate", [](int rank, Effects& effects) {
    if (rank != 1) return;
    for (plan::Batch& batch : effects.run) batch.gate.reset();
  }));
  mutants.push_back(Output("forgets to withdraw", [](int rank, Effects& effects) {
    if (rank == 1) effects.withdraw.reset();
  }));
  mutants.push_back(Output("withdraws too much", [](int, Effects& effects) {
    if (effects.withdraw) --*effects.withdraw;
  }));
  mutants.push_back(Output("withdraws too little", [](int, Effects& effects) {
    if (effects.withdraw) ++*effects.withdraw;
  }));
  mutants.push_back(
      Output("starts the buckets of one round in another order", [](int rank, Effects& effects) {
        if (rank != 1 || effects.run.size() < 2) return;
        if (!effects.run[0].gate || !effects.run[1].gate) return;
        std::swap(effects.run[0].entries, effects.run[1].entries);
        std::swap(effects.run[0].gate->hash, effects.run[1].gate->hash);
      }));
  mutants.push_back(Hearing("thaws later than the others", [](wire::Decide& decide) {
    if (decide.thaw) ++decide.thaw->started;
  }));
  mutants.push_back(Hearing("thaws earlier than the others", [](wire::Decide& decide) {
    if (decide.thaw && decide.thaw->started > 0) --decide.thaw->started;
  }));
  mutants.push_back(Hearing("hears of another plan", [](wire::Decide& decide) {
    if (decide.freeze) std::reverse(decide.freeze->buckets.begin(), decide.freeze->buckets.end());
  }));
  mutants.push_back(Hearing("does not hear that a plan stops",
                            [](wire::Decide& decide) { decide.stop.reset(); }));
  Bug silent;
  silent.loses_frame = [](const wire::Message& message) {
    return std::holds_alternative<wire::Stopped>(message);
  };
  mutants.push_back(Make("does not hear how far a rank got", silent));
  Bug idle;
  idle.hides_waits = true;
  mutants.push_back(Make("does not notice that threads wait", idle));
  Bug stuck;
  stuck.blocks_always = true;
  mutants.push_back(Make("takes every rank that waits for a blocked one", stuck));
  mutants.push_back(Hearing("does not hear that a round ends", [](wire::Decide& decide) {
    std::erase_if(decide.failures,
                  [](const wire::Failure& failure) { return failure.name.empty(); });
  }));
}

void AddOutputMutants(std::vector<Mutant>& mutants) {
  mutants.push_back(Output("forgets to finish a failed operation", [](int rank, Effects& effects) {
    if (rank == 1 && !effects.finish.empty()) effects.finish.pop_back();
  }));
  mutants.push_back(Output("finishes a failed operation twice", [](int, Effects& effects) {
    if (!effects.finish.empty()) effects.finish.push_back(effects.finish.back());
  }));
  mutants.push_back(Output("finishes instead of running", [](int, Effects& effects) {
    if (effects.run.empty()) return;
    effects.finish.push_back({effects.run[0].entries[0].ticket, Status::Ok()});
    effects.run.clear();
  }));
  mutants.push_back(Output("tells ranks different errors", [](int rank, Effects& effects) {
    for (plan::Completion& completion : effects.finish) {
      const Status& status = completion.status;
      if (rank == 1) {
        completion.status = Status(status.code(), status.message() + "!", status.culprit_rank());
      }
    }
  }));
  mutants.push_back(Output("blames the rank after the culprit", [](int, Effects& effects) {
    const Status& status = effects.fatal;
    if (!status.ok()) {
      effects.fatal = Status(status.code(), status.message(), status.culprit_rank() + 1);
    }
  }));
  mutants.push_back(Output("overtakes a frame to a peer", [held = std::optional<plan::Outgoing>()](
                                                              int rank, Effects& effects) mutable {
    if (rank != 0 || effects.send.empty()) return;
    if (held) {
      effects.send.push_back(*std::exchange(held, std::nullopt));
    } else {
      held = std::move(effects.send.back());
      effects.send.pop_back();
    }
  }));
  mutants.push_back(Output("sends a frame twice", [](int rank, Effects& effects) {
    if (rank == 1 && !effects.send.empty()) effects.send.push_back(effects.send.back());
  }));
  mutants.push_back(Output("warns although nothing is wrong", [](int rank, Effects& effects) {
    if (rank == 1 && !effects.run.empty()) effects.notices.push_back({LogLevel::kWarning, "?"});
  }));
}

void AddInputMutants(std::vector<Mutant>& mutants) {
  Bug blind;
  blind.on_submit = [](int, plan::Submission& submission) {
    wire::Signature signature = *submission.signature;
    for (auto& tensor : signature.tensors) tensor.dtype = DType::kFloat32;
    submission.signature = std::move(signature);
  };
  mutants.push_back(Make("does not look at element types", blind));
  Bug setless;
  setless.on_submit = [](int, plan::Submission& submission) {
    wire::Signature signature = *submission.signature;
    if (signature.kind != OpKind::kProcessSet && signature.process_set != 0) {
      signature.name += Format("@{}", std::exchange(signature.process_set, 0));
    }
    if (signature.kind == OpKind::kAlltoall) signature.kind = OpKind::kAllgather;
    if (!submission.first_dims.empty()) submission.first_dims.resize(signature.tensors.size());
    submission.signature = std::move(signature);
  };
  mutants.push_back(Make("does not know sets", setless));
  Bug scales;
  scales.on_submit = [](int, plan::Submission& submission) {
    wire::Signature signature = *submission.signature;
    signature.prescale = signature.postscale = 1.0;
    submission.signature = std::move(signature);
  };
  mutants.push_back(Make("does not look at scales", scales));
  Bug lost_decision;
  lost_decision.loses_frame = [](const wire::Message& message) {
    const auto* decide = std::get_if<wire::Decide>(&message);
    return decide != nullptr && decide->number == 4;
  };
  mutants.push_back(Make("loses a decision", lost_decision));
  Bug lost_bye;
  lost_bye.loses_frame = [](const wire::Message& message) {
    return std::holds_alternative<wire::Bye>(message);
  };
  mutants.push_back(Make("does not hear goodbyes", lost_bye));
  Bug deaf;
  deaf.deaf_to_ends = true;
  mutants.push_back(Make("does not notice deaths", deaf));
  Bug leaderless;
  leaderless.ignores_leaders = true;
  mutants.push_back(Make("takes ranks out of reach for lost ones", leaderless));
  Bug timeless;
  timeless.never_ticks = true;
  mutants.push_back(Make("has no deadlines", timeless));
  Bug forgetful;
  forgetful.forgets_batches = true;
  mutants.push_back(Make("does not see that batches have run", forgetful));
  mutants.push_back(Options("ignores the threshold", [](int, plan::Options& options) {
    options.fusion_threshold_bytes = std::size_t{1} << 30;
  }));
  mutants.push_back(Options("remembers names without end", [](int, plan::Options& options) {
    options.intern_capacity = std::size_t{1} << 20;
  }));
  mutants.push_back(Options("does not look at places", [](int, plan::Options& options) {
    options.unnamed_sites = plan::UnnamedSites::kIgnore;
  }));
  mutants.push_back(Options("gives up too early", [](int, plan::Options& options) {
    if (options.stall_shutdown > Duration{}) options.stall_shutdown /= 2;
  }));
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants;
  AddBatchMutants(mutants);
  AddSetMutants(mutants);
  AddPlanMutants(mutants);
  AddOutputMutants(mutants);
  AddInputMutants(mutants);
  return mutants;
}

}  // namespace hvl::sim
