// When a program counts as one that repeats itself.
#include "csrc/plan/steady.h"

#include <catch2/catch.hpp>
#include <string_view>

namespace hvl::plan {
namespace {

/// Notes one operation per letter; '!' is anything else.
std::uint64_t After(std::string_view program, SteadyState& state) {
  std::uint64_t ready = 0;
  for (const char letter : program) {
    if (letter == '!') {
      state.NoteOther();
    } else {
      state.NoteDecided(static_cast<std::uint32_t>(letter - 'a'), ++ready);
    }
  }
  return state.instances();
}

std::uint64_t After(std::string_view program) {
  SteadyState state;
  return After(program, state);
}

TEST_CASE("instances that are alike are counted, at their ends only") {
  CHECK(After("") == 0);
  CHECK(After("ab") == 0);  // it may go on
  CHECK(After("aba") == 0);
  CHECK(After("abab") == 2);
  CHECK(After("ababa") == 0);
  CHECK(After("ababba") == 3);
  CHECK(After("aaaa") == 4);
}

TEST_CASE("another set of operations counts from one") {
  CHECK(After("abababcab") == 0);
  CHECK(After("abababcabcab") == 2);  // c a b, twice
  CHECK(After("abcabcab") == 0);
  CHECK(After("abcabcaba") == 0);
  CHECK(After("abcabcabab") == 2);  // c is seen to be missing when a comes again
}

TEST_CASE("anything else counts from the beginning") {
  CHECK(After("abab!") == 0);
  CHECK(After("abab!ab") == 0);
  CHECK(After("abab!abab") == 2);
  CHECK(After("ab!ab!ab!ab") == 0);
}

TEST_CASE("the order is the one in which operations mostly became ready") {
  SteadyState state;
  After("abcacbabcabc", state);
  CHECK(state.LearnedOrder() == std::vector<std::uint32_t>{0, 1, 2});
  SteadyState other;
  After("abccbacbacba", other);
  CHECK(other.LearnedOrder() == std::vector<std::uint32_t>{2, 1, 0});
}

}  // namespace
}  // namespace hvl::plan
