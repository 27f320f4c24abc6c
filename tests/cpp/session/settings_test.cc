// From knobs to the options of the rooms.
#include "csrc/session/settings.h"

#include <catch2/catch.hpp>

namespace hvl::session {
namespace {

TEST_CASE("a rank holds on to its core while it waits, unless the ranks outnumber the processors") {
  config::Config config;
  config.local_size = 64;
  config.local_processors = 64;
  CHECK(EngineOptions(config).keep_core > Duration::zero());
  CHECK(TcpOptions(config).spin > Duration::zero());
  config.local_processors = 63;
  CHECK(EngineOptions(config).keep_core == Duration::zero());
  CHECK(TcpOptions(config).spin == Duration::zero());
}

}  // namespace
}  // namespace hvl::session
