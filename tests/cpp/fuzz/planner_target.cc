// A planner among hostile peers. The input is a script of what happens to one rank of three: its
// own submissions and what its peers send. Scripts to start from are recorded in a world of
// planners that keep the rules; mutation then changes calls and frames at any depth.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/process_sets.h"
#include "tests/cpp/fuzz/targets.h"
#include "tests/support/batches.h"

namespace hvl::fuzz {
namespace {

constexpr int kSize = 3;
constexpr std::uint64_t kGeneration = 1;
constexpr std::uint8_t kNames = 20;
constexpr std::uint8_t kVariants = 6;

enum class Call : std::uint8_t {
  kSubmit,   // name, variant
  kFlush,    //
  kReceive,  // peer, length (2 bytes), frame
  kFinish,   //
  kLost,     // peer
  kTick,     // log2 of the microseconds that have passed
  kBroken,   // culprit + 1
  kLeave,    //
  kAwait,    // name
};
constexpr std::uint8_t kCalls = 9;

wire::Signature MakeSignature(std::uint8_t name, std::uint8_t variant) {
  wire::Signature signature;
  signature.name = Format("name{}", name % 16);  // the last four share names with others
  if (name == 15) {
    signature.kind = OpKind::kJoin;
    return signature;
  }
  if (name >= 12 && name < 15) {
    signature.kind = OpKind::kProcessSet;
    signature.process_set = name == 14 ? 2 : 1;
    if (name != 13) signature.ranks = {variant == 1 ? 0 : 1, 2};
    return signature;
  }
  constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kAllgather,     OpKind::kBroadcast,
                               OpKind::kBarrier,   OpKind::kReducescatter, OpKind::kAlltoall};
  signature.kind = kKinds[name % 6];
  if (name >= 6) signature.process_set = name % 3;
  if (signature.kind == OpKind::kBarrier) return signature;
  const int tensors = name % 4 < 3 ? 1 : 3;
  for (int i = 0; i < tensors; ++i) {
    signature.tensors.push_back({variant == 1 ? DType::kInt8 : DType::kFloat32, 0, {variant, 4}});
  }
  return signature;
}

/// Carries a script out on one planner and checks what the planner wants to be done.
class Session {
 public:
  explicit Session(int rank) : rank_(rank) {
    plan::Options options;
    options.fusion_threshold_bytes = 100;
    options.intern_capacity = 3;
    options.stall_shutdown = std::chrono::minutes(2);
    options.freeze_after = 2;
    options.bucket_bytes = 50;
    options.edge_bucket_bytes = 20;
    planner_ = plan::Planner::Create(rank, kSize, kGeneration, options);
  }

  bool Submit(std::uint8_t name, std::uint8_t variant) {
    wire::Signature signature = MakeSignature(name, variant);
    const bool busy = std::any_of(in_flight_.begin(), in_flight_.end(), [&](const auto& entry) {
      return entry.second.name == signature.name && entry.second.set == plan::OwnerOf(signature);
    });
    if (busy || ended_) return false;
    Operation operation{
        signature.name, plan::OwnerOf(signature), signature.kind == OpKind::kJoin, {}};
    operation.run.resize(std::max<std::size_t>(signature.tensors.size(), 1));
    const plan::Ticket ticket = next_ticket_++;
    in_flight_[ticket] = std::move(operation);
    plan::Submission submission{ticket, std::move(signature), {}, variant == 2};
    submission.first_dims.resize(
        plan::AnnouncedDims(*submission.signature, Members(submission.signature->process_set)),
        variant);
    if (variant > 2) submission.site = Format("site{}", variant);
    plan::Effects effects;
    planner_->Submit(std::move(submission), now_, effects);
    Check(effects);
    return true;
  }
  void Flush() {
    plan::Effects effects;
    planner_->Flush(now_, effects);
    Check(effects);
  }
  void Receive(int from, std::span<const std::byte> frame) {
    plan::Effects effects;
    planner_->Receive(from, frame, now_, effects);
    Check(effects);
  }
  bool Finish() {
    if (finished_ == run_.size() || left_) return false;
    plan::Effects effects;
    planner_->BatchFinished(run_[finished_++].sequence, now_, effects);
    Check(effects);
    return true;
  }
  void Lost(int peer) {
    plan::Effects effects;
    planner_->PeerLost(peer, Status(StatusCode::kUnavailable, "gone", peer), now_, effects);
    Check(effects);
  }
  void Tick(int log_microseconds) {
    now_ += std::chrono::microseconds(std::int64_t{1} << log_microseconds);
    plan::Effects effects;
    planner_->Tick(now_, effects);
    Check(effects);
  }
  void Broken(int culprit) {
    plan::Effects effects;
    planner_->DataPlaneFailed(Status(StatusCode::kUnavailable, "broken", culprit), now_, effects);
    Check(effects);
  }
  void Leave() {
    left_ = true;
    plan::Effects effects;
    planner_->Leave(Status::Ok(), now_, effects);
    Check(effects);
  }

  void Await(std::uint8_t name, std::uint8_t dice) {
    const wire::Signature signature = MakeSignature(name, 0);
    const auto waiter = static_cast<plan::Waiter>(dice % 3);
    planner_->Awaited(plan::OwnerOf(signature), signature.name, waiter, now_);
  }

  std::vector<plan::Outgoing> TakeSent() { return std::exchange(sent_, {}); }

 private:
  struct Operation {
    std::string name;
    ProcessSetId set = kWorldSet;
    bool join = false;
    std::vector<bool> run;
  };

  void Check(plan::Effects& effects) {
    HVL_CHECK(!ended_ || (effects.run.empty() && effects.fatal.ok()), "life after the end");
    if (effects.withdraw) Withdraw(*effects.withdraw);
    for (const plan::Batch& batch : effects.run) CheckBatch(batch);
    for (const plan::Completion& completion : effects.finish) {
      HVL_CHECK(!completion.status.ok());
      const auto found = in_flight_.find(completion.ticket);
      HVL_CHECK(found != in_flight_.end(), "an unknown ticket is finished");
      in_flight_.erase(found);
    }
    for (plan::Outgoing& outgoing : effects.send) {
      HVL_CHECK(outgoing.to >= 0 && outgoing.to < kSize && outgoing.to != rank_);
      sent_.push_back(std::move(outgoing));
    }
    ended_ = ended_ || left_ || !effects.fatal.ok();
    HVL_CHECK(planner_->remembered_names() < 100000);
    if (const auto deadline = planner_->next_deadline()) HVL_CHECK(!ended_);
  }

  /// Batches of a plan do not run: their operations are in flight again.
  void Withdraw(std::uint64_t sequence) {
    while (!run_.empty() && run_.back().sequence > sequence) {
      HVL_CHECK(run_.size() > finished_, "what has run is withdrawn");
      for (auto& [ticket, operation] : run_.back().operations) {
        HVL_CHECK(in_flight_.emplace(ticket, std::move(operation)).second);
      }
      run_.pop_back();
    }
    sequence_ = sequence;
  }

  std::size_t Members(ProcessSetId set) const {
    const auto found = members_.find(set);
    return found == members_.end() ? std::size_t{kSize} : found->second.size();
  }

  void CheckDims(const plan::Batch& batch, const plan::BatchEntry& entry) const {
    std::size_t count = 0;
    const std::size_t ranks = Members(batch.spec.process_set);
    if (batch.spec.kind == OpKind::kAllgather) count = ranks;
    if (batch.spec.kind == OpKind::kAlltoall) count = ranks * ranks;
    if (batch.spec.kind == OpKind::kJoin) count = 1;
    HVL_CHECK(entry.first_dims.size() == count);
  }

  void CheckBatch(const plan::Batch& batch) {
    HVL_CHECK(batch.sequence > sequence_, "batches are counted");
    sequence_ = batch.sequence;
    run_.push_back({sequence_, {}});
    HVL_CHECK(!batch.entries.empty());
    if (batch.spec.kind == OpKind::kProcessSet) members_[batch.spec.process_set] = batch.spec.ranks;
    for (const plan::BatchEntry& entry : test::SingleTensors(batch)) {
      if (entry.zeros) {
        HVL_CHECK(*entry.zeros >= 0 && batch.spec.kind == OpKind::kAllreduce);
        HVL_CHECK(std::any_of(in_flight_.begin(), in_flight_.end(),
                              [](const auto& other) { return other.second.join; }),
                  "zeros of a rank that has not joined");
        continue;
      }
      const auto found = in_flight_.find(entry.ticket);
      HVL_CHECK(found != in_flight_.end(), "an unknown ticket runs");
      std::vector<bool>& run = found->second.run;
      HVL_CHECK(entry.first_tensor < run.size() && !run[entry.first_tensor], "a tensor runs twice");
      run[entry.first_tensor] = true;
      CheckDims(batch, entry);
      for (const std::int64_t dim : entry.first_dims) HVL_CHECK(dim >= 0);
      if (std::all_of(run.begin(), run.end(), [](bool done) { return done; })) {
        Operation operation = std::move(found->second);
        in_flight_.erase(found);
        operation.run.assign(operation.run.size(), false);
        run_.back().operations.emplace_back(entry.ticket, std::move(operation));
      }
    }
  }

  const int rank_;
  std::unique_ptr<plan::Planner> planner_;
  TimePoint now_{};
  std::map<plan::Ticket, Operation> in_flight_;
  plan::Ticket next_ticket_ = 1;
  std::uint64_t sequence_ = 0;
  struct Run {
    std::uint64_t sequence = 0;
    std::vector<std::pair<plan::Ticket, Operation>> operations;  // that ended with this batch
  };
  std::vector<Run> run_;
  std::size_t finished_ = 0;  // of them
  std::map<ProcessSetId, std::vector<std::int32_t>> members_;
  bool left_ = false;
  bool ended_ = false;
  std::vector<plan::Outgoing> sent_;
};

/// Reads a script; what is missing at its end counts as zeros.
class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  std::span<const std::byte> Frame() {
    const std::size_t size = Byte() + 256U * Byte();
    const auto frame = bytes_.first(std::min(size, bytes_.size()));
    bytes_ = bytes_.subspan(frame.size());
    return frame;
  }

 private:
  std::span<const std::byte> bytes_;
};

void Play(int rank, std::span<const std::byte> input) {
  const auto peer_of = [rank](std::uint8_t byte) {
    return (rank + 1 + byte % (kSize - 1)) % kSize;
  };
  Session session(rank);
  for (Script script(input); !script.empty();) {
    switch (static_cast<Call>(script.Byte() % kCalls)) {
      case Call::kSubmit: {
        const std::uint8_t name = script.Byte() % kNames;
        session.Submit(name, script.Byte() % kVariants);
        break;
      }
      case Call::kFlush:
        session.Flush();
        break;
      case Call::kReceive: {
        const int from = peer_of(script.Byte());
        session.Receive(from, script.Frame());
        break;
      }
      case Call::kFinish:
        session.Finish();
        break;
      case Call::kLost:
        session.Lost(peer_of(script.Byte()));
        break;
      case Call::kTick:
        session.Tick(script.Byte() % 28);
        break;
      case Call::kBroken:
        session.Broken(script.Byte() % (kSize + 1) - 1);
        break;
      case Call::kLeave:
        session.Leave();
        break;
      case Call::kAwait: {
        const std::uint8_t name = script.Byte() % kNames;
        session.Await(name, script.Byte());
        break;
      }
    }
  }
}

/// A world of three that keeps the rules; writes down what happens to one of them.
class Recorder {
 public:
  Recorder(int rank, std::uint64_t seed) : rank_(rank), random_(seed), repeats_(seed % 2 == 0) {}

  Input Record(int steps) {
    for (int step = 0; step < steps; ++step) {
      const int rank = static_cast<int>(Below(kSize));
      switch (Below(8)) {
        case 0:
        case 1:
        case 2:
        case 3:
          Submit(rank);
          break;
        case 4:
          Note(rank, Call::kFlush);
          sessions_[At(rank)].Flush();
          break;
        case 5:
          if (sessions_[At(rank)].Finish()) Note(rank, Call::kFinish);
          break;
        case 6:
          Note(rank, Call::kTick, {10});
          sessions_[At(rank)].Tick(10);
          break;
        default: {
          const std::uint8_t name = Below(kNames);
          const std::uint8_t dice = Below(3);
          Note(rank, Call::kAwait, {name, dice});
          sessions_[At(rank)].Await(name, dice);
          break;
        }
      }
      Collect(rank);
      for (std::uint64_t i = Below(6); i > 0; --i) Deliver();
    }
    if (Below(4) == 0) Note(rank_, Call::kLost, {0});
    return script_;
  }

 private:
  static std::size_t At(int rank) { return static_cast<std::size_t>(rank); }
  std::uint8_t Below(unsigned limit) { return static_cast<std::uint8_t>(random_() % limit); }

  void Note(int rank, Call call, std::vector<std::uint8_t> arguments = {}) {
    if (rank != rank_) return;
    script_.push_back(static_cast<std::byte>(call));
    for (const std::uint8_t argument : arguments) script_.push_back(std::byte{argument});
  }
  void Submit(int rank) {
    // Some programs repeat themselves, so that plans freeze.
    const bool again = repeats_ && Below(40) != 0;
    const std::uint8_t name = again ? static_cast<std::uint8_t>(2 * Below(3)) : Below(kNames);
    const std::uint8_t variant = !again && Below(12) == 0 ? Below(kVariants) : std::uint8_t{0};
    if (sessions_[At(rank)].Submit(name, variant)) Note(rank, Call::kSubmit, {name, variant});
  }
  void Collect(int rank) {
    for (plan::Outgoing& outgoing : sessions_[At(rank)].TakeSent()) {
      links_[{rank, outgoing.to}].push_back(std::move(outgoing.frame));
    }
  }
  void Deliver() {
    const int from = static_cast<int>(Below(kSize));
    const int to = static_cast<int>(Below(kSize));
    auto& link = links_[{from, to}];
    if (link.empty()) return;
    const wire::Bytes frame = std::move(link.front());
    link.erase(link.begin());
    const auto size = static_cast<std::uint16_t>(frame.size());
    Note(to, Call::kReceive,
         {static_cast<std::uint8_t>((from - to - 1 + kSize) % kSize),
          static_cast<std::uint8_t>(size & 0xffU), static_cast<std::uint8_t>(size >> 8)});
    if (to == rank_) script_.insert(script_.end(), frame.begin(), frame.end());
    sessions_[At(to)].Receive(from, frame);
    Collect(to);
  }

  const int rank_;
  std::mt19937_64 random_;
  const bool repeats_;
  std::array<Session, kSize> sessions_ = {Session(0), Session(1), Session(2)};
  std::map<std::pair<int, int>, std::vector<wire::Bytes>> links_;
  Input script_;
};

std::vector<Input> Record(int rank, std::uint64_t seed) {
  std::vector<Input> corpus;
  for (std::uint64_t i = 0; i < 60; ++i) {
    corpus.push_back(Recorder(rank, seed + i).Record(static_cast<int>(5 + i * 3)));
  }
  return corpus;
}

}  // namespace

void RunCoordinator(std::span<const std::byte> input) { Play(0, input); }
void RunParticipant(std::span<const std::byte> input) { Play(1, input); }
std::vector<Input> CoordinatorCorpus(std::uint64_t seed) { return Record(0, seed); }
std::vector<Input> ParticipantCorpus(std::uint64_t seed) { return Record(1, seed); }

}  // namespace hvl::fuzz
