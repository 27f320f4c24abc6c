// Status and Result: codes, messages, and the two early-return macros.
#include "horovodlite/status.h"

#include <catch2/catch.hpp>
#include <memory>
#include <set>

namespace hvl {
namespace {

Status Refuse() { return {StatusCode::kTimeout, "rank 3 did not answer", 3}; }

Result<int> Half(int value) {
  if (value % 2 != 0) return Status(StatusCode::kInvalidArgument, "odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  HVL_ASSIGN_OR_RETURN(const int half, Half(value));
  HVL_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST_CASE("a default status is OK") {
  const Status status;
  CHECK(status.ok());
  CHECK(status == Status::Ok());
  CHECK(status.code() == StatusCode::kOk);
  CHECK(status.message().empty());
  CHECK(status.culprit_rank() == Status::kNoRank);
  CHECK(status.ToString() == "OK");
}

TEST_CASE("an error carries code, message and culprit") {
  const Status status = Refuse();
  CHECK_FALSE(status.ok());
  CHECK(status.code() == StatusCode::kTimeout);
  CHECK(status.culprit_rank() == 3);
  CHECK(status.ToString() == "Timeout: rank 3 did not answer");
  CHECK(status != Status(StatusCode::kTimeout, "rank 3 did not answer"));
  CHECK(status == Refuse());
}

TEST_CASE("every code has its own name and its own wire value") {
  std::set<std::string_view> names;
  std::set<int> values;
#define HVL_X(enumerator, value, name, meaning)               \
  CHECK(static_cast<int>(StatusCode::enumerator) == (value)); \
  CHECK(StatusCodeName(StatusCode::enumerator) == (name));    \
  CHECK(names.insert(name).second);                           \
  CHECK(values.insert(static_cast<int>(StatusCode::enumerator)).second);
  HVL_STATUS_CODES(HVL_X)
#undef HVL_X
}

TEST_CASE("a code from nowhere is printed and not trusted") {
  CHECK(StatusCodeName(static_cast<StatusCode>(200)) == "Unknown");
}

TEST_CASE("a result holds a value or the reason why not") {
  const Result<int> four = Half(8);
  REQUIRE(four.ok());
  CHECK(*four == 4);
  CHECK(four.status().ok());

  const Result<int> none = Half(7);
  REQUIRE_FALSE(none.ok());
  CHECK(none.status() == Status(StatusCode::kInvalidArgument, "odd"));
}

TEST_CASE("a result can hold what only moves") {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  REQUIRE(made.ok());
  const std::unique_ptr<int> taken = std::move(made).value();
  CHECK(*taken == 5);
}

TEST_CASE("a result can hold an empty string without taking it for an error") {
  const Result<std::string> empty = std::string();
  REQUIRE(empty.ok());
  CHECK(empty->empty());
}

TEST_CASE("assign-or-return passes the first error on") {
  CHECK(*Quarter(12) == 3);
  CHECK(Quarter(7).status().message() == "odd");
  CHECK(Quarter(6).status().message() == "odd");
}

TEST_CASE("return-if-error stops at the first error and evaluates once") {
  int evaluated = 0;
  const auto run = [&evaluated](Status first) -> Status {
    HVL_RETURN_IF_ERROR((++evaluated, first));
    return {StatusCode::kAborted, "reached the end"};
  };
  CHECK(run(Refuse()) == Refuse());
  CHECK(run(Status::Ok()).code() == StatusCode::kAborted);
  CHECK(evaluated == 2);
}

}  // namespace
}  // namespace hvl
