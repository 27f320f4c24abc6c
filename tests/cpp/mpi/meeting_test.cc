// Which process of MPI is which rank. No MPI is needed for this.
#include "csrc/plugins/mpi/meeting.h"

#include <catch2/catch.hpp>

namespace hvl::mpi {
namespace {

using Catch::Contains;

TEST_CASE("ranks are found wherever they are in MPI's world") {
  const std::vector<Card> cards = {{7, 2, 3}, {7, 0, 3}, {7, 1, 3}};
  CHECK(FindRanks(cards, cards[0]).value() == std::vector<int>{1, 2, 0});
}

TEST_CASE("other worlds in the same job are left alone") {
  const std::vector<Card> cards = {{7, 0, 2}, {8, 0, 2}, {8, 1, 2}, {7, 1, 2}};
  CHECK(FindRanks(cards, cards[0]).value() == std::vector<int>{0, 3});
  CHECK(FindRanks(cards, cards[1]).value() == std::vector<int>{1, 2});
}

TEST_CASE("a rank that is missing or there twice is named") {
  const std::vector<Card> missing = {{7, 0, 4}, {7, 1, 4}, {9, 2, 4}};
  const Status lost = FindRanks(missing, missing[0]).status();
  CHECK(lost.code() == StatusCode::kMismatch);
  CHECK(lost.culprit_rank() == 2);
  CHECK_THAT(lost.message(), Contains("has 3 processes") && Contains("ranks [2, 3] of the 4"));
  const std::vector<Card> twice = {{7, 1, 2}, {7, 1, 2}};
  CHECK_THAT(FindRanks(twice, twice[0]).status().message(),
             Contains("ranks 0 and 1 of MPI_COMM_WORLD") && Contains("rank 1 here"));
}

TEST_CASE("cards of nonsense are no ranks") {
  const std::vector<Card> cards = {{7, -1, 1}, {7, 5, 1}, {7, 0, 1}};
  CHECK(FindRanks(cards, cards[2]).value() == std::vector<int>{2});
}

TEST_CASE("sessions of different names have different numbers") {
  CHECK(SessionNumber("job 1") == SessionNumber("job 1"));
  CHECK(SessionNumber("job 1") != SessionNumber("job 2"));
}

}  // namespace
}  // namespace hvl::mpi
