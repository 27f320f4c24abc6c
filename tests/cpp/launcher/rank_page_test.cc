// The page that a launcher hands to a rank, which may do with it what it likes.
#include "launcher/rank_page.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace hvl::launcher {
namespace {

TEST_CASE("a rank writes the page that its launcher has made, and the launcher reads") {
  const std::unique_ptr<RankPage> page = RankPage::Make();
  REQUIRE(page != nullptr);
  CHECK(page->Read(SteadyClock().Now()) == StatusReport());
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page->fd());
  REQUIRE(rank != nullptr);
  rank->SetPhase(RankPhase::kPeerLost, 1, "gone");
  CHECK(page->Read(SteadyClock().Now()).peer == 1);
}

TEST_CASE("a rank cannot take the page away from its launcher") {
  const std::unique_ptr<RankPage> page = RankPage::Make();
  CHECK(::ftruncate(page->fd(), 0) != 0);
  CHECK(::ftruncate(page->fd(), 1 << 20) != 0);
  CHECK(::fcntl(page->fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK(page->Read(SteadyClock().Now()) == StatusReport());
}

TEST_CASE("what a rank scribbles over the page is read without harm, when its file is closed too") {
  const std::unique_ptr<RankPage> page = RankPage::Make();
  void* const memory =
      ::mmap(nullptr, kStatusPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0);
  REQUIRE(memory != MAP_FAILED);
  page->Handed();
  std::memset(memory, 0xff, kStatusPageBytes);
  CHECK(page->Read(SteadyClock().Now()).phase == RankPhase::kNone);
  std::memset(memory, 2, kStatusPageBytes);
  CHECK(page->Read(SteadyClock().Now()).started.name.find('\x02') == std::string::npos);
  ::munmap(memory, kStatusPageBytes);
}

}  // namespace
}  // namespace hvl::launcher
