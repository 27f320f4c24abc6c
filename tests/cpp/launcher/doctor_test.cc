// What is found wrong with a machine, and that a good one is left alone.
#include "launcher/doctor.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace hvl::launcher {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

HostFacts GoodMachine() {
  HostFacts facts;
  facts.kernel = std::string("Linux 6.1 x86_64");
  facts.cores = {{0, {0, 4}}, {0, {1, 5}}, {1, {2, 6}}, {1, {3, 7}}};
  facts.memory_bytes = 64 * kGib;
  facts.available_bytes = 60 * kGib;
  facts.shm = {.exists = true, .writable = true, .total_bytes = 32 * kGib, .free_bytes = 32 * kGib};
  facts.has_pidfd = true;
  facts.has_proc = true;
  facts.open_files = 1 << 20;
  facts.open_files_of_ranks = 4096;
  facts.huge_pages = std::string("madvise");
  facts.shared_huge_pages = std::string("advise");
  facts.clock_source = std::string("tsc");
  facts.seconds_since_1970 = 1800000000;
  facts.command = std::string("python");
  facts.python = {.path = "/usr/bin/python",
                  .version = "3.12.1",
                  .torch = "2.5",
                  .numpy = "2.0",
                  .horovodlite = "?"};
  return facts;
}

std::vector<Finding> Troubles(const HostFacts& facts, int ranks = 4) {
  std::vector<Finding> findings = Examine(facts, ranks, 1);
  std::erase_if(findings, [](const Finding& finding) { return finding.level == Level::kOk; });
  return findings;
}

TEST_CASE("nothing is wrong with a good machine, and each line says what was looked at") {
  CHECK(Troubles(GoodMachine()).empty());
  const std::string text = DoctorText(Examine(GoodMachine(), 4, 1));
  CHECK_THAT(text, Catch::Contains("4 usable cores with 8 hardware threads on 2 NUMA nodes"));
  CHECK_THAT(text, Catch::Contains("/usr/bin/python 3.12.1; torch 2.5, numpy 2.0, horovodlite "));
  CHECK_THAT(text, Catch::EndsWith("All is well.\n"));
}

TEST_CASE("each trouble is one finding of its level, with a cure") {
  struct Case {
    std::string_view topic;
    Level level;
    std::function<void(HostFacts*)> spoil;
    std::string_view text;
  };
  const std::vector<Case> cases = {
      {"processors", Level::kWarn, [](HostFacts* f) { f->cores.resize(2); }, "2 usable cores"},
      {"processors", Level::kWarn, [](HostFacts* f) { f->quota = 1.5; }, "time of 1.5 by the"},
      {"memory", Level::kWarn, [](HostFacts* f) { f->available_bytes = kGib; }, "1.0 GiB avail"},
      {"memory", Level::kWarn, [](HostFacts* f) { f->memory_limit = kGib; }, "allows 1.0 GiB"},
      {"shared memory", Level::kWarn, [](HostFacts* f) { f->memfd_error = std::string("no"); },
       "cannot share"},
      {"/dev/shm", Level::kWarn, [](HostFacts* f) { f->shm.exists = false; }, "is not there"},
      {"/dev/shm", Level::kWarn, [](HostFacts* f) { f->shm.writable = false; }, "not writable"},
      {"/dev/shm", Level::kWarn, [](HostFacts* f) { f->shm.free_bytes = 64 << 20; }, "64 MiB free"},
      {"huge pages", Level::kWarn, [](HostFacts* f) { f->huge_pages = std::string("never"); },
       "never"},
      {"huge pages", Level::kWarn, [](HostFacts* f) { f->shared_huge_pages = std::string("deny"); },
       "deny"},
      {"open files", Level::kFail, [](HostFacts* f) { f->open_files = 20; }, "which needs 76"},
      {"open files", Level::kWarn, [](HostFacts* f) { f->open_files_of_ranks = 256; }, "open 256"},
      {"processes", Level::kFail, [](HostFacts* f) { f->processes = 5; }, "4 ranks and hvlrun"},
      {"processes", Level::kWarn, [](HostFacts* f) { f->group_processes = 50; }, "50 may run"},
      {"connections", Level::kFail, [](HostFacts* f) { f->socket_error = std::string("x"); },
       "cannot meet: x"},
      {"processes' ends", Level::kWarn, [](HostFacts* f) { f->has_pidfd = false; }, "pidfd_open"},
      {"processes' ends", Level::kWarn, [](HostFacts* f) { f->has_proc = false; }, "/proc is not"},
      {"clock", Level::kWarn, [](HostFacts* f) { f->clock_source = std::string("hpet"); },
       "from hpet"},
      {"clock", Level::kWarn, [](HostFacts* f) { f->seconds_since_1970 = 9; }, "years behind"},
      {"python", Level::kFail, [](HostFacts* f) { f->python = {}; }, "no interpreter is in PATH"},
      {"python", Level::kFail, [](HostFacts* f) { f->python.version.clear(); }, "does not run"},
      {"python", Level::kWarn, [](HostFacts* f) { f->python.torch.clear(); }, "torch missing"},
      {"python", Level::kWarn, [](HostFacts* f) { f->python.horovodlite = std::string("0.0"); },
       "hvlrun is "},
      {"python", Level::kWarn, [](HostFacts* f) { f->python.horovodlite.clear(); }, "lite missing"},
  };
  for (const Case& trouble : cases) {
    HostFacts facts = GoodMachine();
    trouble.spoil(&facts);
    const std::vector<Finding> found = Troubles(facts);
    INFO(trouble.topic << ": " << trouble.text);
    REQUIRE(found.size() == 1);
    CHECK(found[0].topic == trouble.topic);
    CHECK(found[0].level == trouble.level);
    CHECK_THAT(found[0].text, Catch::Contains(std::string(trouble.text)));
    CHECK_FALSE(found[0].cure.empty());
    CHECK(HasFailure(found) == (trouble.level == Level::kFail));
  }
}

TEST_CASE("a command that is no Python can do without one") {
  HostFacts facts = GoodMachine();
  facts.command = "./a.out";
  facts.python = {};
  CHECK_FALSE(HasFailure(Troubles(facts)));
}

TEST_CASE("the report ends with what it comes to") {
  HostFacts facts = GoodMachine();
  facts.huge_pages = std::string("never");
  CHECK_THAT(DoctorText(Examine(facts, 4, 1)),
             Catch::EndsWith("Jobs run here; 1 of the above could be better.\n"));
  facts.socket_error = std::string("no");
  CHECK_THAT(DoctorText(Examine(facts, 4, 1)),
             Catch::EndsWith("This machine cannot run such a job.\n"));
}

TEST_CASE("as JSON the findings are the same") {
  HostFacts facts = GoodMachine();
  facts.socket_error = std::string("no");
  const auto json = nlohmann::json::parse(DoctorJson(Examine(facts, 4, 1)));
  CHECK(json["fit"] == false);
  REQUIRE(json["findings"].size() == Examine(facts, 4, 1).size());
  const auto& findings = json["findings"];
  CHECK(std::count_if(findings.begin(), findings.end(),
                      [](const auto& finding) { return finding["level"] == "fail"; }) == 1);
}

TEST_CASE("interpreters are known by their names") {
  for (const char* name : {"python", "python3", "/opt/x/bin/python3.11"}) CHECK(IsPython(name));
  for (const char* name : {"pythonic", "ipython", "/python/sh", "", "python3-config"}) {
    CHECK_FALSE(IsPython(name));
  }
}

}  // namespace
}  // namespace hvl::launcher
