// The codec: exact bytes, round trips, and refusal of everything else.
#include "csrc/wire/codec.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "tests/support/random_messages.h"

namespace hvl::wire {
namespace {

using Catch::Matchers::Contains;

/// "01 02ff" as bytes; spaces are for the reader.
Bytes FromHex(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (c != ' ') digits += c;
  }
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Signature Allreduce(std::string name) {
  Signature signature;
  signature.name = std::move(name);
  signature.tensors = {{DType::kFloat32, 0, {3, 300}}};
  return signature;
}

Announce Fresh(Signature signature) {
  Announce message;
  message.fresh.push_back({std::move(signature), {}, false});
  if (message.fresh[0].signature.kind == OpKind::kAllgather) {
    message.fresh[0].first_dims.resize(message.fresh[0].signature.tensors.size());
  }
  return message;
}

std::string Reason(const Bytes& frame) { return Decode(frame).status().message(); }

// ---- the format

TEST_CASE("the bytes of an announcement are fixed") {
  Announce message;
  message.generation = 7;
  message.epoch = 1;
  message.acknowledged = 300;
  message.known = {{2, 1}, {5, 3}};
  message.known_first_dims = {9};
  message.fresh.push_back({Allreduce("ab"), {}, true});
  CHECK(Encode(message) ==
        FromHex("02 01 07 01 ac02 "     // version, type, generation, epoch, acknowledged
                "03 02 39 "             // one byte of bits from id 2: ids 2, 5, 6, 7
                "01 09 "                // one first dimension
                "02 "                   // one new operation:
                "01 00 01 00 "          // transient, allreduce, sum, no scales
                "02 6162 00 00 "        // name, process set, root
                "01 06 00 02 03 ac02 "  // one tensor: float32, row-major, [3, 300]
                ));
}

TEST_CASE("the bytes of an allgather with scales are fixed") {
  Signature signature = Allreduce("g");
  signature.kind = OpKind::kAllgather;
  signature.prescale = 0.5;
  signature.postscale = -2.0;
  signature.process_set = 3;
  signature.root_rank = -1;
  Announce message = Fresh(signature);
  message.fresh[0].first_dims = {128};
  CHECK(Encode(message) ==
        FromHex("02 01 00 00 00 "  // version, type, generation, epoch, acknowledged
                "00 00 02 "        // no ids, no dimensions, one new operation:
                "00 01 01 03 "     // not transient, allgather, sum, both scales
                "01 67 03 01 "     // name, process set 3, root -1
                "000000000000e03f 00000000000000c0 "  // 0.5, -2.0
                "01 06 00 02 03 ac02 "                // one tensor
                "01 8001 "                            // its first dimension
                ));
}

TEST_CASE("the bytes of a decision are fixed") {
  Decide message;
  message.generation = 7;
  message.number = 4;
  message.first_sequence = 9;
  Member run;
  run.id = 2;
  run.count = 5;
  Member next;
  next.id = 7;
  Member named;
  named.name = "ab";
  named.id = 8;
  Member range;
  range.id = 1;
  range.range = {1, 2};
  message.batches = {{{run, next}, {}}, {{named, range}, {4, 5}, 3}};
  message.failures = {{"z", Status(StatusCode::kTimeout, "late", 3), 9}};
  message.starts_epoch = true;
  message.departure = {2, 6};
  CHECK(Encode(message) ==
        FromHex("02 02 07 04 03 09 "  // version, type, generation, number, both flags, sequence
                "02 "                 // two batches:
                "04 24 05 00 00 "  // two members: ids 2 to 6 (distance 2, a count), id 7 (the next)
                "05 03 05 02 6162 08 "            // two of process set 3: ab, which gets id 8,
                "6a 01 02 02 04 05 "              // id 1 (7 back), tensors 1 and 2; two dimensions
                "01 01 7a 09 04 06 04 6c617465 "  // z of set 9 fails: Timeout, rank 3, a text
                "02 06 "                          // rank 2 left after batch 6
                ));
}

TEST_CASE("the bytes of an alltoall with a site are fixed") {
  Signature signature = Allreduce("t");
  signature.kind = OpKind::kAlltoall;
  Announce message;
  message.fresh.push_back({signature, {1, 0, 200}, true, "a.py:7"});
  CHECK(Encode(message) ==
        FromHex("02 01 00 00 00 00 00 02 "        // as above
                "03 05 01 00 "                    // transient with a site, alltoall, sum, no scales
                "01 74 00 00 "                    // name, world, root
                "01 06 00 02 03 ac02 "            // one tensor
                "03 01 00 c801 06 612e70793a37 "  // rows for each rank; the site
                ));
}

TEST_CASE("the bytes of what blocks a rank, and of the end of a round, are fixed") {
  Announce message;
  message.blocked = Blocked{"ab", 3, true};
  CHECK(Encode(message) == FromHex("02 01 00 00 00 00 00 01 "  // as above, no new operation
                                   "02 6162 07 "));            // name; process set 3, alone
  Decide decide;
  decide.failures = {{"", Status(StatusCode::kMismatch, "no", 1), 3}};
  CHECK(Encode(decide) == FromHex("02 02 00 00 00 00 00 01 "  // header, no batches, one failure:
                                  "00 03 02 02 02 6e6f "));   // of all of set 3
}

TEST_CASE("the bytes of a process set are fixed") {
  Signature signature;
  signature.kind = OpKind::kProcessSet;
  signature.name = "s";
  signature.process_set = 2;
  signature.ranks = {0, 1, 300};
  CHECK(Encode(Fresh(signature)) ==
        FromHex("02 01 00 00 00 00 00 02 00 07 01 00 "  // as above, operation 7
                "01 73 02 00 "                          // name, process set 2, root
                "03 00 00 aa02 00 "                     // three ranks, by their gaps; no tensors
                ));
}

TEST_CASE("the bytes of what a joined rank takes part in are fixed") {
  Decide message;
  message.number = 1;
  message.first_sequence = 1;
  Member member;
  member.name = "ab";
  member.id = 3;
  member.signature = Allreduce("ab");
  message.batches = {{{member}, {}}};
  CHECK(Encode(message) == FromHex("02 02 00 01 00 01 01 "  // header, number, flags, sequence
                                   "02 0d "                 // a named member, signature and id
                                   "00 01 00 02 6162 00 00 01 06 00 02 03 ac02 03 "
                                   "00 00 "  // no dimensions, no failures
                                   ));
}

TEST_CASE("the bytes of a goodbye are fixed") {
  CHECK(Encode(Bye{7, 300, 301, Status::Ok()}) == FromHex("02 03 07 ac02 ad02 00"));
  CHECK(Encode(Bye{7, 300, 301, Status(StatusCode::kInternal, "no")}) ==
        FromHex("02 03 07 ac02 ad02 08 01 02 6e6f"));
}

TEST_CASE("the bytes of a plan that freezes, stops and thaws are fixed") {
  Decide freeze;
  freeze.number = 4;
  Member run;
  run.id = 2;
  run.count = 5;
  Member range;
  range.id = 7;
  range.range = {0, 1};
  freeze.freeze = Freeze{9, {{{{{run}, {}}}}, {{{{range}, {}}, {{run}, {}}}}}, 0x0102030405060708};
  CHECK(Encode(freeze) ==
        FromHex("02 02 00 04 04 00 00 00 "  // as above, the flag; no batches, no failures
                "09 0807060504030201 02 "   // plan 9, its hash, two buckets:
                "01 02 24 05 00 "           // one batch of one member: ids 2 to 6
                "02 02 02 00 01 00 "        // two batches: id 7 (the next), tensor 0;
                "02 5c 05 00 "              // ids 2 to 6 (6 back)
                ));
  Decide thaw;
  thaw.number = 5;
  thaw.stop = 9;
  thaw.thaw = Thaw{9, 300, 2, ThawReason::kMissing};
  CHECK(Encode(thaw) == FromHex("02 02 00 05 18 00 00 00 "  // as above, both flags
                                "09 "                       // plan 9 stops
                                "09 ac02 02 03 "            // and thaws after 300 buckets: rank 2
                                ));
  CHECK(Encode(Stopped{7, 9, 300, ThawReason::kLeft}) == FromHex("02 04 07 09 ac02 06"));
}

TEST_CASE("ids cost bits: a run is a few bytes, every second id of 1,000 two bits") {
  Announce message;
  const std::size_t empty = Encode(message).size();
  message.known = {{100, 1000}};
  CHECK(Encode(message).size() - empty <= 4);
  message.known.clear();
  for (std::uint32_t id = 0; id < 1000; id += 2) message.known.push_back({id, 1});
  CHECK(Encode(message).size() - empty <= 128);
  const Result<Message> decoded = Decode(Encode(message));
  REQUIRE(decoded.ok());
  CHECK(std::get<Announce>(*decoded) == message);
}

// ---- round trips

TEST_CASE("every message comes back as it was sent") {
  const std::uint64_t seed = GENERATE(take(500, random(0, 1 << 30)));
  INFO("seed " << seed);
  test::RandomMessages random(seed);
  const Announce announce = random.Announce();
  const Decide decide = random.Decide();
  const Bye bye = random.Bye();
  const Stopped stopped = random.Stopped();
  const Result<Message> first = Decode(Encode(announce));
  const Result<Message> second = Decode(Encode(decide));
  const Result<Message> third = Decode(Encode(bye));
  const Result<Message> fourth = Decode(Encode(stopped));
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  REQUIRE(third.ok());
  REQUIRE(fourth.ok());
  CHECK(std::get<Announce>(*first) == announce);
  CHECK(std::get<Decide>(*second) == decide);
  CHECK(std::get<Bye>(*third) == bye);
  CHECK(std::get<Stopped>(*fourth) == stopped);
  CHECK(PeekGeneration(Encode(decide)).value() == decide.generation);
}

TEST_CASE("sets of ids come back whichever form they travel in") {
  const std::uint64_t seed = GENERATE(take(300, random(0, 1 << 30)));
  INFO("seed " << seed);
  test::RandomMessages random(seed);
  Announce message;
  std::uint32_t next = static_cast<std::uint32_t>(random.Below(100));
  const std::uint64_t longest = 1 + random.Below(20);
  for (std::uint64_t i = random.Below(50); i > 0; --i) {
    const auto count = static_cast<std::uint32_t>(1 + random.Below(longest));
    message.known.push_back({next, count});
    next += count + 1 + static_cast<std::uint32_t>(random.Below(longest));
  }
  const Result<Message> decoded = Decode(Encode(message));
  REQUIRE(decoded.ok());
  CHECK(std::get<Announce>(*decoded).known == message.known);
}

TEST_CASE("the largest ids can be sent in both forms") {
  Announce message;
  message.known = {{kMaxIds - 1, 1}};
  CHECK(std::get<Announce>(*Decode(Encode(message))) == message);
  message.known = {{0, kMaxIds}};
  CHECK(std::get<Announce>(*Decode(Encode(message))) == message);
  message.known = {{kMaxIds - 9, 1}, {kMaxIds - 7, 1}, {kMaxIds - 5, 2}, {kMaxIds - 1, 1}};
  CHECK(std::get<Announce>(*Decode(Encode(message))) == message);
}

TEST_CASE("the text of an error is made fit to travel") {
  const Bye long_text{0, 0, 0, Status(StatusCode::kInternal, std::string(100000, 'x'))};
  CHECK(std::get<Bye>(*Decode(Encode(long_text))).cause.message().size() == kMaxMessageBytes);
  const Bye bad_text{0, 0, 0, Status(StatusCode::kInternal, "a\xff\xfe z")};
  CHECK(std::get<Bye>(*Decode(Encode(bad_text))).cause.message() == "a?? z");
  // Cut in the middle of a character.
  const std::string cut = std::string(kMaxMessageBytes - 1, 'x') + "ü";
  const Bye cut_text{0, 0, 0, Status(StatusCode::kInternal, cut)};
  CHECK(Decode(Encode(cut_text)).ok());
}

// ---- refusal

TEST_CASE("plans that make no sense are refused") {
  CHECK_THAT(Reason(FromHex("02 04 00 09 00 08")), Contains("reason 8 of a thaw"));
  CHECK_THAT(Reason(FromHex("02 02 00 04 20 00 00 00")), Contains("decision flags 32"));
  CHECK_THAT(Reason(FromHex("02 02 00 04 04 00 00 00 09 0000000000000000 01 00 00 00")),
             Contains("an empty bucket"));
  CHECK_THAT(Reason(FromHex("02 02 00 04 04 00 00 00 09 0000000000000000 05 00 00 00")),
             Contains("5 buckets do not fit"));
  CHECK_THAT(Reason(FromHex("02 02 00 04 08 00 00 00 ffffffff7f")), Contains("a plan is"));
}

TEST_CASE("a frame cut at any byte is refused") {
  const std::uint64_t seed = GENERATE(take(40, random(0, 1 << 30)));
  INFO("seed " << seed);
  test::RandomMessages random(seed);
  for (const Bytes& frame : {Encode(random.Announce()), Encode(random.Decide()),
                             Encode(random.Bye()), Encode(random.Stopped())}) {
    for (std::size_t size = 0; size < frame.size(); ++size) {
      const Result<Message> decoded = Decode(std::span(frame).first(size));
      INFO("cut at " << size << " of " << frame.size());
      REQUIRE_FALSE(decoded.ok());
      CHECK(decoded.status().code() == StatusCode::kInternal);
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    CHECK_FALSE(Decode(longer).ok());
  }
}

TEST_CASE("frames of another version or type are refused and say so") {
  Bytes frame = Encode(Bye{});
  frame[0] = std::byte{3};
  CHECK_THAT(Reason(frame), Contains("version 3 of the protocol, this build speaks 2"));
  CHECK_FALSE(PeekGeneration(frame).ok());
  for (const int type : {0, 5, 255}) {
    frame = Encode(Bye{});
    frame[1] = std::byte(type);
    CHECK_THAT(Reason(frame), Contains(Format("message type {}", type)));
  }
  CHECK_FALSE(Decode({}).ok());
  CHECK_FALSE(PeekGeneration({}).ok());
}

struct Bad {
  const char* hex;
  const char* reason;
};

TEST_CASE("nonsense about what blocks a rank is refused with the reason") {
  const std::string blocked = "0201 00 00 00 00 00 01";
  CHECK_THAT(Reason(FromHex(blocked + "00 00")), Contains("an empty name"));
  CHECK_THAT(Reason(FromHex(blocked + "01ff 00")), Contains("a name is not UTF-8"));
  CHECK_THAT(Reason(FromHex(blocked + "0161 8080808020")), Contains("a process set is"));
  CHECK_THAT(Reason(FromHex(blocked)), Contains("ends too early"));
}

TEST_CASE("fields out of their range are refused with the reason") {
  const std::string announce = "0201 00 00 00";
  const std::string fresh = announce + "00 00 02";  // no ids, no dims, one new operation
  const std::string decide = "0202 00 01 00 01";
  const Bad bad = GENERATE(values<Bad>({
      // Numbers.
      {"0201ffffffffffffffffff02", "more than 64 bits"},
      {"020180808080808080808080", "more than 64 bits"},
      {"0201008080808010", "an epoch is 4294967296"},
  }));
  CHECK_THAT(Reason(FromHex(bad.hex)), Contains(bad.reason));

  const auto reason = [](const std::string& hex) { return Reason(FromHex(hex)); };
  // Sets of ids.
  CHECK_THAT(reason(announce + "04 0001 0001"), Contains("ids out of order"));
  CHECK_THAT(reason(announce + "02 0000"), Contains("ids out of order"));
  CHECK_THAT(reason(announce + "02 8080800801"), Contains("ids out of order or range"));
  CHECK_THAT(reason(announce + "02 8180800801"), Contains("a gap between ids is 16777217"));
  CHECK_THAT(reason(announce + "80808001"), Contains("do not fit"));
  CHECK_THAT(reason(announce + "03 ffffff07 02"), Contains("an id too large"));
  CHECK_THAT(reason(announce + "05 ffffff07 0101"), Contains("a set of 2 bytes"));
  CHECK_THAT(reason(announce + "07 00 01"), Contains("ends too early"));
  // Dimensions.
  CHECK_THAT(reason(announce + "00 01 80808080808080808001"), Contains("a dimension is"));
  CHECK_THAT(reason(announce + "00 05 01"), Contains("5 dimensions do not fit"));
  // Signatures.
  CHECK_THAT(reason(announce + "00 00 fe01 00000000000000"), Contains("127 new operations"));
  CHECK_THAT(reason(fresh + "04 0001000161000000"), Contains("announcement flags 4"));
  CHECK_THAT(reason(fresh + "00 0801000161000000"), Contains("operation 8"));
  CHECK_THAT(reason(fresh + "00 0006000161000000"), Contains("reduction 6"));
  CHECK_THAT(reason(fresh + "00 0001040161000000"), Contains("signature flags 4"));
  CHECK_THAT(reason(fresh + "00 00010000 00000000"), Contains("an empty name"));
  CHECK_THAT(reason(fresh + "00 00010001 ff00000000"), Contains("a name is not UTF-8"));
  CHECK_THAT(reason(fresh + "00 0001000161 00 8080808020 00"), Contains("root rank"));
  CHECK_THAT(reason(fresh + "00 0001010161 00 00 000000000000f07f 00"), Contains("not finite"));
  CHECK_THAT(reason(fresh + "00 0001000161 00 00 00"), Contains("0 tensors for operation"));
  CHECK_THAT(reason(fresh + "00 0301000161 00 00 01 060000"), Contains("1 tensors for"));
  CHECK_THAT(reason(fresh + "00 0001000161 00 00 01 0a0000"), Contains("element type 10"));
  CHECK_THAT(reason(fresh + "00 0101000161 00 00 01 060000 00"),
             Contains("0 first dimensions for 1 tensors"));
  CHECK_THAT(reason(fresh + "00 0501000161 00 00 02 060000 060000 03 010101"),
             Contains("3 first dimensions for 2 tensors"));
  CHECK_THAT(reason(fresh + "00 0501000161 00 00 01 060000 00"),
             Contains("0 first dimensions for 1 tensors"));
  CHECK_THAT(reason(fresh + "02 0001000161 00 00 01 060000 00"), Contains("an empty site"));
  CHECK_THAT(reason(fresh + "02 0001000161 00 00 01 060000 01 ff"),
             Contains("a site is not UTF-8"));
  // Joins and process sets.
  CHECK_THAT(reason(fresh + "00 0601000161 03 00 00"), Contains("works on the world only"));
  CHECK_THAT(reason(fresh + "00 0601000161 00 00 01 060000"), Contains("1 tensors for"));
  CHECK_THAT(reason(fresh + "00 0701000161 00 00 00 00"), Contains("process set 0 is the world"));
  CHECK_THAT(reason(fresh + "00 0701000161 01 00 7f 00"), Contains("127 ranks do not fit"));
  CHECK_THAT(reason(fresh + "00 0701000161 01 00 02 ffffffff07 00 00"),
             Contains("rank 2147483648"));
  CHECK_THAT(reason(fresh + "00 0701000161 01 00 01 00 01 060000"), Contains("1 tensors for"));
  // Decisions.
  CHECK_THAT(reason("0202 00 01 20 01 00 00"), Contains("decision flags 32"));
  CHECK_THAT(reason(decide + "01 00 00 00"), Contains("an empty batch"));
  CHECK_THAT(reason(decide + "01 02 11 0161 00 00"), Contains("a named member with"));
  CHECK_THAT(reason(decide + "01 02 01 00 00 00"), Contains("an empty name"));
  CHECK_THAT(reason(decide + "01 02 09 08"), Contains("operation 8"));
  CHECK_THAT(reason(decide + "01 02 08 00 00"), Contains("ids out of range"));
  CHECK_THAT(reason(decide + "01 02 04 00 00 00"), Contains("ids out of range"));
  CHECK_THAT(reason(decide + "01 02 06 02 0001 00"), Contains("a range of a run"));
  CHECK_THAT(reason(decide + "01 03 00 00 00"), Contains("process set 0 told twice"));
  CHECK_THAT(reason(decide + "00 01 0161 00 00 000000"), Contains("a failure that is OK"));
  CHECK_THAT(reason(decide + "00 01 0161 00 09 0000"), Contains("code 9"));
  CHECK_THAT(reason(decide + "00 01 0161 00 01 0300"), Contains("culprit rank -2"));
  CHECK_THAT(reason("0202 00 01 02 01 00 00 8080808008 00"), Contains("a rank is"));
}

TEST_CASE("a name may have 4,096 bytes and a shape 64 dimensions, no more") {
  Signature signature = Allreduce(std::string(kMaxNameBytes, 'n'));
  signature.tensors[0].shape = std::vector<std::int64_t>(kMaxDimensions, 1);
  CHECK(CheckSignature(signature).ok());
  CHECK(Decode(Encode(Fresh(signature))).ok());
  Signature long_name = signature;
  long_name.name += 'n';
  CHECK_THAT(Reason(Encode(Fresh(long_name))), Contains("a name of 4097 bytes"));
  Signature deep = signature;
  deep.tensors[0].shape.push_back(1);
  CHECK_THAT(Reason(Encode(Fresh(deep))), Contains("65 dimensions"));
}

TEST_CASE("a signature that cannot be sent is found before it is sent") {
  const auto reason = [](const Signature& signature) {
    const Status status = CheckSignature(signature);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    return status.message();
  };
  CHECK_THAT(reason(Allreduce("")), Contains("a name is needed"));
  CHECK_THAT(reason(Allreduce(std::string(5000, 'n'))), Contains("5000 bytes; the most is 4096"));
  CHECK_THAT(reason(Allreduce("\xc0\x80")), Contains("valid UTF-8"));
  Signature bad = Allreduce("x");
  bad.tensors.clear();
  CHECK_THAT(reason(bad), Contains("at least one tensor"));
  bad = Allreduce("x");
  bad.kind = OpKind::kBarrier;
  CHECK_THAT(reason(bad), Contains("barrier has no tensors"));
  bad.tensors.clear();
  bad.kind = OpKind::kJoin;
  bad.process_set = 1;
  CHECK_THAT(reason(bad), Contains("works on the world only"));
  bad.kind = OpKind::kProcessSet;
  bad.ranks = {0, 2, 2};
  CHECK_THAT(reason(bad), Contains("must ascend"));
  bad.ranks = {-1};
  CHECK_THAT(reason(bad), Contains("must ascend"));
  bad.ranks = {0, 2};
  CHECK(CheckSignature(bad).ok());
  bad.process_set = kWorldSet;
  CHECK_THAT(reason(bad), Contains("process set 0 is the world"));
  bad = Allreduce("x");
  bad.prescale = std::nan("");
  CHECK_THAT(reason(bad), Contains("finite"));
  bad.prescale = 1.0;
  bad.postscale = std::numeric_limits<double>::infinity();
  CHECK_THAT(reason(bad), Contains("finite"));
  bad = Allreduce("x");
  bad.tensors[0].shape = {-1};
  CHECK_THAT(reason(bad), Contains("dimension -1 is negative"));
  bad.tensors[0].shape = std::vector<std::int64_t>(65, 1);
  CHECK_THAT(reason(bad), Contains("65 dimensions"));
}

TEST_CASE("of a long site the end is sent") {
  Announce message = Fresh(Allreduce("x"));
  message.fresh[0].site = "\xff" + std::string(1000, 'd') + "/train.py:12";
  const std::string site = std::get<Announce>(*Decode(Encode(message))).fresh[0].site;
  CHECK(site.size() == kMaxSiteBytes);
  CHECK_THAT(site, Catch::Matchers::EndsWith("d/train.py:12"));
}

TEST_CASE("a group of a hundred thousand tensors can be sent, one of ten million cannot") {
  Signature group = Allreduce("g");
  group.tensors.assign(100000, {DType::kFloat32, 0, {1000, 1000}});
  CHECK(CheckSignature(group).ok());
  CHECK(Decode(Encode(Fresh(group))).ok());
  group.tensors.assign(2000000, {DType::kFloat32, 0, {1000, 1000}});
  CHECK_THAT(CheckSignature(group).message(), Contains("use several operations"));
  CHECK_THAT(Reason(Encode(Fresh(group))), Contains("a signature too long"));
}

TEST_CASE("a tiny frame cannot make the decoder reserve much memory") {
  // Counts far beyond the frame, at each place that has one.
  const std::string huge = "ffffffffffffffff7f";
  for (const std::string& prefix :
       {std::string("0201 000000 00"), std::string("0201 000000 00 00"),
        std::string("0201 000000 00 00 02 00 000100 0161 00 00"), std::string("0202 00 01 00 01"),
        std::string("0202 00 01 00 01 01"), std::string("0202 00 01 00 01 00")}) {
    CHECK_THAT(Reason(FromHex(prefix + huge)), Contains("do not fit into the 0 bytes left"));
  }
}

}  // namespace
}  // namespace hvl::wire
