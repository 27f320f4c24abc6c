// Ends the run when a test case has asserted nothing: such a test cannot fail. Linked into every
// test program. Catch's own `--warn NoAssertions` would also forbid sections that only prepare.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

namespace {

class SilentTests final : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (stats.totals.assertions.total() > 0) return;
    std::cerr << "the test case '" << stats.testInfo.name << "' has asserted nothing\n";
    std::exit(EXIT_FAILURE);
  }
};

CATCH_REGISTER_LISTENER(SilentTests)

}  // namespace
