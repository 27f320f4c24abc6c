#include "csrc/wire/codec.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/wire/reader.h"
#include "csrc/wire/signature_codec.h"
#include "csrc/wire/text.h"
#include "csrc/wire/writer.h"

// Layout of every frame: version (1 byte), type (1 byte), generation (varint), then the message.
// Numbers are varints (Signed: zigzag varints), flags and enums single bytes, doubles 8 bytes
// little-endian, texts a length and UTF-8.

namespace hvl::wire {
namespace {

enum class Type : std::uint8_t { kAnnounce = 1, kDecide = 2, kBye = 3, kStopped = 4 };

// Fewest bytes that each item takes; see Reader::Count.
constexpr std::size_t kFreshBytes = 8;
constexpr std::size_t kRunBytes = 2;
constexpr std::size_t kFailureBytes = 5;
constexpr std::size_t kBatchBytes = 2;
constexpr std::size_t kBucketBytes = 3;

// Flags of an announced operation, a member, a Decide.
constexpr std::uint8_t kTransient = 1;
constexpr std::uint8_t kHasSite = 2;
constexpr std::uint64_t kNamed = 1;
constexpr std::uint64_t kRange = 2;
constexpr std::uint64_t kExtra = 4;  // known: a count follows; named: an id follows
constexpr int kMemberFlagBits = 3;
constexpr std::uint64_t kSignature = 1;  // named: in place of the distance
constexpr std::uint64_t kHasSet = 1;     // of a batch
constexpr std::uint64_t kIsBlocked = 1;  // of an announcement
constexpr std::uint64_t kAlone = 1;      // of what blocks a rank
constexpr std::uint8_t kStartsEpoch = 1;
constexpr std::uint8_t kHasDeparture = 2;
constexpr std::uint8_t kFreezes = 4;
constexpr std::uint8_t kStops = 8;
constexpr std::uint8_t kThaws = 16;

void WriteHeader(Writer& out, Type type, std::uint64_t generation) {
  out.U8(kVersion);
  out.U8(static_cast<std::uint8_t>(type));
  out.Varint(generation);
}

Bytes Finish(Writer& out) {
  HVL_CHECK(out.size() <= kMaxFrameBytes, Format("frame of {} bytes", out.size()));
  return out.Take();
}

// ---- sets of ids: whichever is shorter, runs or a bitset
//
// varint (n << 1 | form). Form 0: n runs, each as the gap to the end of the run before (never 0
// between two runs) and the count. Form 1: the first id, then n bytes of bits, lowest first.

std::size_t BitsetBytes(const std::vector<IdRun>& runs) {
  const std::size_t span = runs.back().first + runs.back().count - runs.front().first;
  return (span + 7) / 8;
}

bool BitsetIsShorter(const std::vector<IdRun>& runs) {
  if (runs.size() < 2) return false;
  std::size_t run_bytes = VarintBytes(runs.size() << 1);
  std::uint32_t end = 0;
  for (const IdRun& run : runs) {
    run_bytes += VarintBytes(run.first - end) + VarintBytes(run.count);
    end = run.first + run.count;
  }
  const std::size_t bytes = BitsetBytes(runs);
  return VarintBytes(bytes << 1) + VarintBytes(runs.front().first) + bytes < run_bytes;
}

void WriteBitset(Writer& out, const std::vector<IdRun>& runs) {
  const std::uint32_t base = runs.front().first;
  std::vector<std::uint8_t> bits(BitsetBytes(runs));
  for (const IdRun& run : runs) {
    for (std::uint32_t bit = run.first - base; bit < run.first - base + run.count; ++bit) {
      bits[bit / 8] = static_cast<std::uint8_t>(bits[bit / 8] | (1U << (bit % 8)));
    }
  }
  out.Varint(bits.size() << 1 | 1);
  out.Varint(base);
  for (const std::uint8_t byte : bits) out.U8(byte);
}

void WriteIds(Writer& out, const std::vector<IdRun>& runs) {
  if (BitsetIsShorter(runs)) return WriteBitset(out, runs);
  out.Varint(runs.size() << 1);
  std::uint32_t end = 0;
  for (const IdRun& run : runs) {
    HVL_CHECK(run.count > 0 && (run.first > end || end == 0), "ids ascend with gaps");
    out.Varint(run.first - end);
    out.Varint(run.count);
    end = run.first + run.count;
  }
  HVL_CHECK(end <= kMaxIds, Format("id {}", end));
}

std::vector<IdRun> ReadRuns(Reader& in, std::size_t count) {
  std::vector<IdRun> runs;
  if (count > in.remaining() / kRunBytes) {
    in.Fail(Format("{} runs of ids do not fit into the {} bytes left", count, in.remaining()));
    return runs;
  }
  runs.reserve(count);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t gap = in.Bounded(kMaxIds, "a gap between ids");
    const std::uint64_t length = in.Bounded(kMaxIds, "a run of ids");
    const std::uint64_t first = end + gap;
    end = first + length;
    if (length == 0 || (gap == 0 && i > 0) || end > kMaxIds) in.Fail("ids out of order or range");
    if (!in.ok()) return {};
    runs.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(length)});
  }
  return runs;
}

std::vector<IdRun> ReadBitset(Reader& in, std::size_t size) {
  std::vector<IdRun> runs;
  const std::uint64_t base = in.Bounded(kMaxIds, "an id");
  if (size > kMaxIds / 8 || base + size * 8 > kMaxIds + 7) {
    in.Fail(Format("a set of {} bytes at id {}", size, base));
    return runs;
  }
  auto id = static_cast<std::uint32_t>(base);
  for (const std::byte byte : in.Raw(size)) {
    const auto bits = std::to_integer<std::uint32_t>(byte);
    for (std::uint32_t bit = 0; bit < 8; ++bit, ++id) {
      if ((bits >> bit & 1U) == 0) continue;
      if (!runs.empty() && runs.back().first + runs.back().count == id) {
        ++runs.back().count;
      } else {
        runs.push_back({id, 1});
      }
    }
  }
  if (!runs.empty() && runs.back().first + runs.back().count > kMaxIds) in.Fail("an id too large");
  return runs;
}

std::vector<IdRun> ReadIds(Reader& in) {
  const std::uint64_t tag = in.Bounded(std::uint64_t{kMaxFrameBytes} << 1, "a set of ids");
  const auto count = static_cast<std::size_t>(tag >> 1);
  return (tag & 1) != 0 ? ReadBitset(in, count) : ReadRuns(in, count);
}

// ---- Status

void WriteStatus(Writer& out, const Status& status) {
  out.U8(static_cast<std::uint8_t>(status.code()));
  if (status.ok()) return;
  out.Signed(status.culprit_rank());
  out.Text(CleanText(std::string_view(status.message()).substr(0, kMaxMessageBytes)));
}

Status ReadStatus(Reader& in) {
  const std::uint8_t code = in.U8();
  if (code > static_cast<std::uint8_t>(StatusCode::kInternal)) in.Fail(Format("code {}", code));
  if (code == 0 || !in.ok()) return Status::Ok();
  const std::int64_t culprit = in.Signed();
  if (culprit < Status::kNoRank || culprit > static_cast<std::int64_t>(kMaxRank)) {
    in.Fail(Format("culprit rank {}", culprit));
  }
  std::string message(in.Utf8(kMaxMessageBytes, "a message"));
  if (!in.ok()) return Status::Ok();
  return {static_cast<StatusCode>(code), std::move(message), static_cast<int>(culprit)};
}

// ---- Announce

/// What tells places apart is at the end: the name of the file and the line.
std::string_view SiteEnd(std::string_view site) {
  return site.substr(site.size() - std::min(site.size(), kMaxSiteBytes));
}

bool AnnouncesDims(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

void WriteFresh(Writer& out, const Fresh& fresh) {
  out.U8(static_cast<std::uint8_t>((fresh.transient ? kTransient : 0) |
                                   (fresh.site.empty() ? 0 : kHasSite)));
  WriteSignature(out, fresh.signature);
  if (AnnouncesDims(fresh.signature.kind)) WriteDims(out, fresh.first_dims);
  if (!fresh.site.empty()) out.Text(CleanText(SiteEnd(fresh.site)));
}

Fresh ReadFresh(Reader& in) {
  Fresh fresh;
  const std::uint8_t flags = in.U8();
  if (flags > (kTransient | kHasSite)) in.Fail(Format("announcement flags {}", flags));
  fresh.transient = (flags & kTransient) != 0;
  fresh.signature = ReadSignature(in);
  if (AnnouncesDims(fresh.signature.kind)) {
    fresh.first_dims = ReadDims(in, kMaxFirstDims);
    const std::size_t dims = fresh.first_dims.size();
    const std::size_t tensors = fresh.signature.tensors.size();
    // Of an alltoall as many per tensor as its process set has ranks, which the reader knows.
    const bool alltoall = fresh.signature.kind == OpKind::kAlltoall;
    if (in.ok() && (alltoall ? dims == 0 || dims % tensors != 0 : dims != tensors)) {
      in.Fail(Format("{} first dimensions for {} tensors", dims, tensors));
    }
  }
  if ((flags & kHasSite) != 0) {
    fresh.site = in.Utf8(kMaxSiteBytes, "a site");
    if (fresh.site.empty()) in.Fail("an empty site");
  }
  return fresh;
}

// New operations are preceded by a varint (operations << 1 | the rank is blocked), and followed by
// what blocks it: the name and a varint (process set << 1 | the thread is alone).

void WriteBlocked(Writer& out, const Blocked& blocked) {
  out.Text(blocked.name);
  out.Varint(std::uint64_t{blocked.process_set} << 1 | (blocked.alone ? kAlone : 0));
}

Blocked ReadBlocked(Reader& in) {
  Blocked blocked;
  blocked.name = in.Utf8(kMaxNameBytes, "a name");
  if (blocked.name.empty()) in.Fail("an empty name");
  const std::uint64_t tag = in.Bounded(kMaxUint32 << 1 | kAlone, "a process set");
  blocked.process_set = static_cast<ProcessSetId>(tag >> 1);
  blocked.alone = (tag & kAlone) != 0;
  return blocked;
}

Announce ReadAnnounce(Reader& in, std::uint64_t generation) {
  Announce message;
  message.generation = generation;
  message.epoch = static_cast<std::uint32_t>(in.Bounded(kMaxUint32, "an epoch"));
  message.acknowledged = in.Varint();
  message.known = ReadIds(in);
  message.known_first_dims = ReadDims(in, kMaxFrameBytes);
  const std::uint64_t tag = in.Varint();
  const std::uint64_t count = tag >> 1;
  if (count > in.remaining() / kFreshBytes) {
    in.Fail(Format("{} new operations do not fit into the {} bytes left", count, in.remaining()));
  }
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) message.fresh.push_back(ReadFresh(in));
  if ((tag & kIsBlocked) != 0 && in.ok()) message.blocked = ReadBlocked(in);
  return message;
}

// ---- Decide
//
// A member is a varint (distance << 3 | flags). Known operations: the distance (zigzag) from the id
// after the previous member; then the count, if it is not 1. Named ones: distance 0 and the name,
// or 1 and the signature, which has the name; the id that it has from now on, if any. Then the
// range, if not all tensors are meant. A batch is a varint (members << 1 | has a process set), the
// process set if it is not the world, the members and the dimensions.

std::uint64_t Zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0);
}

void WriteMember(Writer& out, const Member& member, std::uint32_t& next_id) {
  const bool named = !member.name.empty();
  const bool extra = named ? member.id.has_value() : member.count != 1;
  HVL_CHECK(named || member.id.has_value(), "a member has a name or an id");
  HVL_CHECK(member.count == 1 || (!named && !member.range),
            "only whole known operations form runs");
  HVL_CHECK(!member.signature || member.signature->name == member.name,
            "a signature goes with its name");
  std::uint64_t tag = (named ? kNamed : 0) | (member.range ? kRange : 0) | (extra ? kExtra : 0);
  if (!named) {
    const auto distance = std::int64_t{*member.id} - std::int64_t{next_id};
    tag |= Zigzag(distance) << kMemberFlagBits;
    next_id = *member.id + member.count;
  } else if (member.signature) {
    tag |= kSignature << kMemberFlagBits;
  }
  out.Varint(tag);
  if (member.signature) {
    WriteSignature(out, *member.signature);
  } else if (named) {
    out.Text(member.name);
  }
  if (extra) out.Varint(named ? *member.id : member.count);
  if (!member.range) return;
  out.Varint(member.range->first_tensor);
  out.Varint(member.range->tensor_count);
}

Member ReadMember(Reader& in, std::uint32_t& next_id) {
  Member member;
  const std::uint64_t tag = in.Varint();
  const std::uint64_t zigzag = tag >> kMemberFlagBits;
  if ((tag & kNamed) != 0) {
    if (zigzag > kSignature) in.Fail("a named member with a distance");
    if (zigzag == kSignature) {
      member.signature = ReadSignature(in);
      member.name = member.signature->name;
    } else {
      member.name = in.Utf8(kMaxNameBytes, "a name");
    }
    if (member.name.empty()) in.Fail("an empty name");
    if ((tag & kExtra) != 0) {
      member.id = static_cast<std::uint32_t>(in.Bounded(kMaxIds - 1, "an id"));
    }
  } else {
    if ((tag & kExtra) != 0) {
      member.count = static_cast<std::uint32_t>(in.Bounded(kMaxIds, "a run of ids"));
    }
    const auto distance = static_cast<std::int64_t>((zigzag >> 1) ^ (0 - (zigzag & 1)));
    const std::int64_t id = std::int64_t{next_id} + distance;
    if (member.count == 0 || id < 0 || id + member.count > kMaxIds) in.Fail("ids out of range");
    if (!in.ok()) return member;
    member.id = static_cast<std::uint32_t>(id);
    next_id = *member.id + member.count;
  }
  if ((tag & kRange) != 0) {
    if (member.count != 1) in.Fail("a range of a run");
    member.range.emplace();
    member.range->first_tensor = static_cast<std::uint32_t>(in.Bounded(kMaxUint32, "a tensor"));
    member.range->tensor_count = static_cast<std::uint32_t>(in.Bounded(kMaxUint32, "tensors"));
  }
  return member;
}

DecidedBatch ReadBatch(Reader& in, std::uint32_t& next_id) {
  DecidedBatch batch;
  const std::uint64_t tag = in.Varint();
  const std::uint64_t count = tag >> 1;
  if (count == 0) in.Fail("an empty batch");
  if (count > in.remaining()) {
    in.Fail(Format("{} members do not fit into the {} bytes left", count, in.remaining()));
  }
  if ((tag & kHasSet) != 0) {
    batch.process_set = static_cast<ProcessSetId>(in.Bounded(kMaxUint32, "a process set"));
    if (batch.process_set == kWorldSet) in.Fail("process set 0 told twice");
  }
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    batch.members.push_back(ReadMember(in, next_id));
  }
  batch.first_dims = ReadDims(in, kMaxFrameBytes);
  return batch;
}

void WriteBatch(Writer& out, const DecidedBatch& batch, std::uint32_t& next_id) {
  const bool has_set = batch.process_set != kWorldSet;
  out.Varint(batch.members.size() << 1 | (has_set ? kHasSet : 0));
  if (has_set) out.Varint(batch.process_set);
  for (const Member& member : batch.members) WriteMember(out, member, next_id);
  WriteDims(out, batch.first_dims);
}

std::vector<DecidedBatch> ReadBatches(Reader& in, std::uint32_t& next_id) {
  std::vector<DecidedBatch> batches;
  const std::size_t count = in.Count(kBatchBytes, "batches");
  for (std::size_t i = 0; i < count && in.ok(); ++i) batches.push_back(ReadBatch(in, next_id));
  return batches;
}

// A plan: its number, the hash (8 bytes), and per bucket its batches. They count their ids from
// where the batches of the same message end.

void WriteFreeze(Writer& out, const Freeze& freeze, std::uint32_t& next_id) {
  out.Varint(freeze.plan);
  out.U64(freeze.hash);
  out.Varint(freeze.buckets.size());
  for (const Bucket& bucket : freeze.buckets) {
    out.Varint(bucket.batches.size());
    for (const DecidedBatch& batch : bucket.batches) WriteBatch(out, batch, next_id);
  }
}

std::uint32_t ReadPlan(Reader& in) {
  return static_cast<std::uint32_t>(in.Bounded(kMaxUint32, "a plan"));
}

Freeze ReadFreeze(Reader& in, std::uint32_t& next_id) {
  Freeze freeze;
  freeze.plan = ReadPlan(in);
  freeze.hash = in.U64();
  const std::size_t buckets = in.Count(kBucketBytes, "buckets");
  for (std::size_t i = 0; i < buckets && in.ok(); ++i) {
    freeze.buckets.push_back({ReadBatches(in, next_id)});
    if (freeze.buckets.back().batches.empty()) in.Fail("an empty bucket");
  }
  return freeze;
}

ThawReason ReadReason(Reader& in) {
  const std::uint8_t reason = in.U8();
  if (reason >= kThawReasons) in.Fail(Format("reason {} of a thaw", reason));
  return static_cast<ThawReason>(reason);
}

void WriteThaw(Writer& out, const Thaw& thaw) {
  out.Varint(thaw.plan);
  out.Varint(thaw.started);
  out.Varint(static_cast<std::uint64_t>(thaw.rank));
  out.U8(static_cast<std::uint8_t>(thaw.reason));
}

Thaw ReadThaw(Reader& in) {
  Thaw thaw;
  thaw.plan = ReadPlan(in);
  thaw.started = in.Varint();
  thaw.rank = static_cast<int>(in.Bounded(kMaxRank, "a rank"));
  thaw.reason = ReadReason(in);
  return thaw;
}

Failure ReadFailure(Reader& in) {
  Failure failure;
  failure.name = in.Utf8(kMaxNameBytes, "a name");
  failure.process_set = static_cast<ProcessSetId>(in.Bounded(kMaxUint32, "a process set"));
  failure.status = ReadStatus(in);
  if (failure.status.ok()) in.Fail("a failure that is OK");
  return failure;
}

Departure ReadDeparture(Reader& in) {
  Departure departure;
  departure.rank = static_cast<int>(in.Bounded(kMaxRank, "a rank"));
  departure.batches_finished = in.Varint();
  return departure;
}

Decide ReadDecide(Reader& in, std::uint64_t generation) {
  Decide message;
  message.generation = generation;
  message.number = in.Varint();
  const std::uint8_t flags = in.U8();
  if (flags > (kStartsEpoch | kHasDeparture | kFreezes | kStops | kThaws)) {
    in.Fail(Format("decision flags {}", flags));
  }
  message.starts_epoch = (flags & kStartsEpoch) != 0;
  message.first_sequence = in.Varint();
  std::uint32_t next_id = 0;
  message.batches = ReadBatches(in, next_id);
  const std::size_t failures = in.Count(kFailureBytes, "failures");
  for (std::size_t i = 0; i < failures && in.ok(); ++i) {
    message.failures.push_back(ReadFailure(in));
  }
  if ((flags & kFreezes) != 0) message.freeze = ReadFreeze(in, next_id);
  if ((flags & kStops) != 0) message.stop = ReadPlan(in);
  if ((flags & kThaws) != 0) message.thaw = ReadThaw(in);
  if ((flags & kHasDeparture) != 0) message.departure = ReadDeparture(in);
  return message;
}

Bye ReadBye(Reader& in, std::uint64_t generation) {
  Bye message;
  message.generation = generation;
  message.batches_finished = in.Varint();
  message.batches_begun = in.Varint();
  message.cause = ReadStatus(in);
  return message;
}

Stopped ReadStopped(Reader& in, std::uint64_t generation) {
  Stopped message;
  message.generation = generation;
  message.plan = ReadPlan(in);
  message.started = in.Varint();
  message.reason = ReadReason(in);
  return message;
}

}  // namespace

Bytes Encode(const Announce& message) {
  Writer out;
  WriteHeader(out, Type::kAnnounce, message.generation);
  out.Varint(message.epoch);
  out.Varint(message.acknowledged);
  WriteIds(out, message.known);
  WriteDims(out, message.known_first_dims);
  out.Varint(message.fresh.size() << 1 | (message.blocked ? kIsBlocked : 0));
  for (const Fresh& fresh : message.fresh) WriteFresh(out, fresh);
  if (message.blocked) WriteBlocked(out, *message.blocked);
  return Finish(out);
}

Bytes Encode(const Decide& message) {
  Writer out;
  WriteHeader(out, Type::kDecide, message.generation);
  out.Varint(message.number);
  out.U8(static_cast<std::uint8_t>(
      (message.starts_epoch ? kStartsEpoch : 0) | (message.departure ? kHasDeparture : 0) |
      (message.freeze ? kFreezes : 0) | (message.stop ? kStops : 0) | (message.thaw ? kThaws : 0)));
  out.Varint(message.first_sequence);
  out.Varint(message.batches.size());
  std::uint32_t next_id = 0;
  for (const DecidedBatch& batch : message.batches) WriteBatch(out, batch, next_id);
  out.Varint(message.failures.size());
  for (const Failure& failure : message.failures) {
    out.Text(failure.name);
    out.Varint(failure.process_set);
    WriteStatus(out, failure.status);
  }
  if (message.freeze) WriteFreeze(out, *message.freeze, next_id);
  if (message.stop) out.Varint(*message.stop);
  if (message.thaw) WriteThaw(out, *message.thaw);
  if (message.departure) {
    out.Varint(static_cast<std::uint64_t>(message.departure->rank));
    out.Varint(message.departure->batches_finished);
  }
  return Finish(out);
}

Bytes Encode(const Bye& message) {
  Writer out;
  WriteHeader(out, Type::kBye, message.generation);
  out.Varint(message.batches_finished);
  out.Varint(message.batches_begun);
  WriteStatus(out, message.cause);
  return Finish(out);
}

Bytes Encode(const Stopped& message) {
  Writer out;
  WriteHeader(out, Type::kStopped, message.generation);
  out.Varint(message.plan);
  out.Varint(message.started);
  out.U8(static_cast<std::uint8_t>(message.reason));
  return Finish(out);
}

namespace {

/// Version and type; fails on anything else than a frame of ours.
std::uint8_t ReadType(Reader& in, std::size_t size) {
  if (size > kMaxFrameBytes) in.Fail(Format("a frame of {} bytes", size));
  const std::uint8_t version = in.U8();
  if (in.ok() && version != kVersion) {
    in.Fail(Format("version {} of the protocol, this build speaks {}", version, kVersion));
  }
  return in.U8();
}

}  // namespace

Result<Message> Decode(std::span<const std::byte> frame) {
  Reader in(frame);
  const std::uint8_t type = ReadType(in, frame.size());
  const std::uint64_t generation = in.Varint();
  Message message;
  switch (static_cast<Type>(type)) {
    case Type::kAnnounce:
      message = ReadAnnounce(in, generation);
      break;
    case Type::kDecide:
      message = ReadDecide(in, generation);
      break;
    case Type::kBye:
      message = ReadBye(in, generation);
      break;
    case Type::kStopped:
      message = ReadStopped(in, generation);
      break;
    default:  // a byte from outside, not only our enumerators
      in.Fail(Format("message type {}", type));
  }
  in.ExpectEnd();
  HVL_RETURN_IF_ERROR(in.status());
  return message;
}

Result<std::uint64_t> PeekGeneration(std::span<const std::byte> frame) {
  Reader in(frame);
  ReadType(in, frame.size());
  const std::uint64_t generation = in.Varint();
  HVL_RETURN_IF_ERROR(in.status());
  return generation;
}

}  // namespace hvl::wire
