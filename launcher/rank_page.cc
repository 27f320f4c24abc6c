#include "launcher/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace hvl::launcher {

std::unique_ptr<RankPage> RankPage::Make() {
  net::UniqueFd fd(::memfd_create("hvl-status", MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(kStatusPageBytes)) != 0) {
    return nullptr;
  }
  // Without the seals a rank could shorten the file, and reading it would end the launcher.
  if (::fcntl(fd.get(), F_ADD_SEALS, StatusPageSeals()) != 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, kStatusPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  MakeStatusPage(memory);
  return std::unique_ptr<RankPage>(new RankPage(std::move(fd), memory));
}

RankPage::RankPage(net::UniqueFd fd, void* memory) : fd_(std::move(fd)), memory_(memory) {}

RankPage::~RankPage() { ::munmap(memory_, kStatusPageBytes); }

}  // namespace hvl::launcher
