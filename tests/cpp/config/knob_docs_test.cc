// docs/knobs.md is generated from the knob table; this test is the generator. When the table has
// changed: HVL_TEST_UPDATE_DOCS=1 build/tests/cpp/config/config_test "docs*"
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "csrc/config/env_names.h"

namespace hvl::config {
namespace {

constexpr std::string_view kHead =
    R"(<!-- Generated from csrc/config/knobs.def by tests/cpp/config/knob_docs_test.cc. -->
# Knobs

Every knob is an environment variable, read once when `init()` (or `Session::Create`) runs. The
Horovod name is an alias of the same knob; where both are set, the `HVL_` name wins and a difference
is warned about. `hvlrun` offers the flag, which wins over the environment.

A value that does not parse, or lies outside what is allowed, is an error that names the variable,
the value, what is allowed and the default. An empty value means "not set". An unknown `HVL_` name
is warned about, with the nearest known one; `HVL_TEST_`, `HVL_BENCH_`, `HVL_BUILD_` and `HVL_RUN_`
are reserved for tests, benchmarks, the build and the launcher. "Same on all ranks" knobs are
compared when the ranks meet, and a difference is an error that names both values.

)";

constexpr std::string_view kWithoutEffect = R"(
## Horovod's variables without effect

Rank 0 warns once about each of these that is set. So it does about a `HOROVOD_HOSTNAME` that is not
`hvlrun`'s, which sets it for scripts that read it, and about a `HOROVOD_DYNAMIC_PROCESS_SETS` that
is off: what it asks for when it is on is always so.

| Variable | It has no effect, because |
|---|---|
)";

std::string Code(std::string_view text) { return text.empty() ? "" : Format("`{}`", text); }

std::string KnobsPage() {
  std::string page(kHead);
  page +=
      "| Knob | Horovod's name | Flag of `hvlrun` | Default | Allowed | Same on all ranks |"
      " Meaning |\n|---|---|---|---|---|---|---|\n";
  for (const KnobInfo& knob : AllKnobs()) {
    page += Format("| {} | {} | {} | {} | {} | {} | {} |\n", Code(knob.env_name), Code(knob.alias),
                   Code(knob.flag), Code(knob.default_text), knob.range_text,
                   knob.must_agree ? "yes" : "", knob.help);
  }
  page += kWithoutEffect;
  for (const HorovodName& row : HorovodNamesWithoutEffect()) {
    page += Format("| {} | {} |\n", Code(row.name), row.why);
  }
  return page;
}

TEST_CASE("docs/knobs.md says what the knob table says") {
  const std::string path = HVL_TEST_SOURCE_DIR "/docs/knobs.md";
  if (ProcessEnv().Get("HVL_TEST_UPDATE_DOCS") == "1") std::ofstream(path) << KnobsPage();
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  INFO("to regenerate: HVL_TEST_UPDATE_DOCS=1 build/tests/cpp/config/config_test \"docs*\"");
  CHECK((text.str() == KnobsPage()));  // in brackets: Catch would print both pages
}

}  // namespace
}  // namespace hvl::config
