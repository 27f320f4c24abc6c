// What is said about the hosts of a job before it starts.
#include "launcher/survey.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;

HostReport Answered(const std::string& host) {
  HostReport report;
  report.host = host;
  report.answered = true;
  report.version = HVL_VERSION;
  report.cores = 4;
  report.findings = {{Finding::Level::kOk, "system", "Linux", ""}};
  return report;
}

TEST_CASE("another version and another time on a host are found") {
  std::vector<HostReport> reports(4);
  reports[0] = Answered("good");
  reports[1] = Answered("old");
  reports[1].version = "0.0.1";
  reports[2] = Answered("late");
  reports[2].clock_ahead = -3100ms;
  reports[3].host = "dead";
  Compare(&reports);
  CHECK(reports[0].findings.size() == 1);
  REQUIRE(reports[1].findings.size() == 2);
  CHECK(reports[1].findings[1].level == Finding::Level::kFail);
  CHECK(reports[1].findings[1].text == "hvlrun 0.0.1, and here " HVL_VERSION);
  REQUIRE(reports[2].findings.size() == 2);
  CHECK(reports[2].findings[1].level == Finding::Level::kWarn);
  CHECK(reports[2].findings[1].text == "3.1 s behind this machine's");
  CHECK(reports[3].findings.empty());
  CHECK(HasFailure(reports));
}

TEST_CASE("the table has a line for each host, and below what could be better") {
  std::vector<HostReport> reports = {Answered("n1"), Answered("node22")};
  reports[1].findings.push_back({Finding::Level::kWarn, "clock", "late", "set it"});
  CHECK_FALSE(HasFailure(reports));
  const std::string text = SurveyText(reports, false);
  CHECK_THAT(text, Catch::StartsWith("host    version    cores       clock  result\nn1      "));
  CHECK_THAT(text, Catch::Contains("    4    +0.000 s  ok\n"));
  CHECK_THAT(text, Catch::Contains("ok; 1 could be better\n\nnode22:\n[warn] clock"));
  CHECK_THAT(text, Catch::EndsWith("\nJobs run on these hosts.\n"));
  CHECK_THAT(SurveyText(reports, true), Catch::Contains("\nn1:\n[ok]   system"));
}

}  // namespace
}  // namespace hvl::launcher
