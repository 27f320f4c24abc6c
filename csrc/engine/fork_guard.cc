#include "csrc/engine/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace hvl::engine {
namespace {

const std::size_t kPageBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

}  // namespace

// MADV_WIPEONFORK gives the child a zero page, so the question costs no system call. Where the
// kernel lacks it (before 4.14), process ids are compared.
ForkGuard::ForkGuard() : process_id_(::getpid()) {
  void* const page =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kPageBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kPageBytes);
    return;
  }
  *static_cast<char*>(page) = 1;
  page_ = static_cast<const char*>(page);
}

ForkGuard::~ForkGuard() {
  if (page_ != nullptr) ::munmap(const_cast<char*>(page_), kPageBytes);
}

bool ForkGuard::InChild() const {
  return page_ != nullptr ? *page_ == 0 : ::getpid() != process_id_;
}

}  // namespace hvl::engine
