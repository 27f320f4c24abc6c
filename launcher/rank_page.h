// The launcher's end of a rank's status page: memory that both share, and that stays readable when
// the rank is gone, by SIGKILL too.
#pragma once

#include <memory>

#include "csrc/base/clock.h"
#include "csrc/base/status_page.h"
#include "csrc/net/fd.h"

namespace hvl::launcher {

class RankPage {
 public:
  /// Null where the system gives none; a rank does without.
  static std::unique_ptr<RankPage> Make();
  ~RankPage();
  RankPage(const RankPage&) = delete;
  RankPage& operator=(const RankPage&) = delete;

  /// For the rank to inherit (HVL_STATUS_FD), until Handed() was called.
  int fd() const { return fd_.get(); }
  /// The rank has it: no other one shall.
  void Handed() { fd_.Reset(); }
  StatusReport Read(TimePoint now) const { return ReadStatusPage(memory_, now); }

 private:
  RankPage(net::UniqueFd fd, void* memory);

  net::UniqueFd fd_;
  void* const memory_;
};

}  // namespace hvl::launcher
