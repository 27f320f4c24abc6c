#include "csrc/net/fd.h"

#include <unistd.h>

namespace hvl::net {

void UniqueFd::Reset() {
  // Linux frees the descriptor even when close() reports an error, so there is nothing to retry.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace hvl::net
