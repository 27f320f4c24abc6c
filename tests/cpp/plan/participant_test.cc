// A participant does not believe everything: decisions that cannot be right are refused.
#include "csrc/plan/participant.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

wire::Member Named(std::string name, std::optional<std::uint32_t> id = {}) {
  wire::Member member;
  member.name = std::move(name);
  member.id = id;
  return member;
}
wire::Member Known(std::uint32_t id, std::uint32_t count = 1) {
  wire::Member member;
  member.id = id;
  member.count = count;
  return member;
}
wire::Member Range(wire::Member member, std::uint32_t first, std::uint32_t count) {
  member.range = {first, count};
  return member;
}

/// A participant that has announced "x", a group "g" of two tensors, a barrier and an allgather.
class Fixture {
 public:
  Fixture() {
    Submit(Allreduce("x"));
    Submit(Group("g", {{DType::kFloat32, 0, {1}}, {DType::kFloat64, 0, {1}}}));
    Submit(Barrier("b"));
    Submit(Allgather("a"), {3});
    Submit(Broadcast("c"));
    (void)participant_.TakeAnnouncements();
  }

  void Submit(wire::Signature signature, std::vector<std::int64_t> first_dims = {}) {
    participant_.Submit({++ticket_, std::move(signature), std::move(first_dims), false}, {},
                        effects_);
  }
  Status Apply(std::vector<wire::DecidedBatch> batches, std::vector<wire::Failure> failures = {}) {
    wire::Decide decide;
    decide.number = ++number_;
    decide.first_sequence = next_sequence_;
    next_sequence_ += batches.size();
    decide.batches = std::move(batches);
    decide.failures = std::move(failures);
    return participant_.Apply(decide, {}, effects_);
  }
  Status Apply(std::vector<wire::Member> members, std::vector<std::int64_t> dims = {}) {
    return Apply(std::vector<wire::DecidedBatch>{{std::move(members), std::move(dims)}});
  }
  Status ApplyRaw(const wire::Decide& decide) { return participant_.Apply(decide, {}, effects_); }

  Effects effects_;
  std::uint64_t number_ = 0;
  std::uint64_t next_sequence_ = 1;

 private:
  Participant participant_{1, 2, 0, Options{}};
  Ticket ticket_ = 0;
};

TEST_CASE("a participant runs what it announced") {
  Fixture fixture;
  CHECK(fixture.Apply({Named("x", 0)}).ok());
  CHECK(fixture.Apply({Range(Named("g", 1), 1, 1)}).ok());
  CHECK(fixture.Apply({Range(Known(1), 0, 1)}).ok());
  CHECK(fixture.Apply({Named("a")}, {3, 4}).ok());
  CHECK(fixture.Apply({Named("b")}).ok());
  CHECK(fixture.effects_.run.size() == 5);
}

TEST_CASE("a decision that cannot be right is refused") {
  Fixture fixture;
  Status status;
  SECTION("an unknown name") { status = fixture.Apply({Named("y")}); }
  SECTION("an unknown id") { status = fixture.Apply({Known(0)}); }
  SECTION("a run of ids that ends outside") {
    REQUIRE(fixture.Apply({Named("x", 0)}).ok());
    status = fixture.Apply({Known(0, 2)});
  }
  SECTION("an id that is not the next one") { status = fixture.Apply({Named("x", 1)}); }
  SECTION("a second id for a name") {
    REQUIRE(fixture.Apply({Named("x", 0)}).ok());
    fixture.Submit(Allreduce("x"));
    status = fixture.Apply({Named("x", 1)});
  }
  SECTION("an operation that was submitted but not announced") {
    fixture.Submit(Allreduce("y"));
    status = fixture.Apply({Named("y")});
  }
  SECTION("an operation twice") {
    REQUIRE(fixture.Apply({Named("x", 0)}).ok());
    status = fixture.Apply({Known(0)});
  }
  SECTION("a tensor twice") {
    REQUIRE(fixture.Apply({Range(Named("g"), 0, 1)}).ok());
    status = fixture.Apply({Range(Named("g"), 0, 1)});
  }
  SECTION("all of an operation that has begun") {
    REQUIRE(fixture.Apply({Range(Named("g"), 0, 1)}).ok());
    status = fixture.Apply({Named("g")});
  }
  SECTION("a failure of an operation that has begun") {
    REQUIRE(fixture.Apply({Range(Named("g"), 0, 1)}).ok());
    status = fixture.Apply(std::vector<wire::DecidedBatch>{},
                           {{"g", Status(StatusCode::kTimeout, "late")}});
  }
  SECTION("tensors that do not exist") { status = fixture.Apply({Range(Named("g"), 1, 2)}); }
  SECTION("tensors far beyond") { status = fixture.Apply({Range(Named("g"), ~0U, ~0U)}); }
  SECTION("no tensors") { status = fixture.Apply({Range(Named("g"), 0, 0)}); }
  SECTION("types that cannot be fused") { status = fixture.Apply({Named("g")}); }
  SECTION("kinds that cannot be fused") { status = fixture.Apply({Named("x"), Named("c")}); }
  SECTION("a barrier with company") { status = fixture.Apply({Named("x"), Named("b")}); }
  SECTION("an allgather without dimensions") { status = fixture.Apply({Named("a")}); }
  SECTION("an allgather with too many dimensions") {
    status = fixture.Apply({Named("a")}, {1, 2, 3});
  }
  SECTION("an allreduce with dimensions") { status = fixture.Apply({Named("x")}, {1, 2}); }
  SECTION("a decision that is missing") {
    wire::Decide decide;
    decide.number = 2;
    status = fixture.ApplyRaw(decide);
  }
  SECTION("a batch that is missing") {
    wire::Decide decide;
    decide.number = 1;
    decide.first_sequence = 2;
    decide.batches = {{{Named("x")}, {}}};
    status = fixture.ApplyRaw(decide);
  }
  CHECK(status.code() == StatusCode::kInternal);
  CHECK_FALSE(status.message().empty());
}

}  // namespace
}  // namespace hvl::plan
