// Operations of all kinds whose results every rank can check without knowing the others' inputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "horovodlite/session.h"

namespace hvl::test {

/// One operation as one rank sees it. Its memory lives as long as it does.
class CrowdOperation {
 public:
  virtual ~CrowdOperation() = default;
  /// Hands it to the runtime; nothing to do for a rank that takes no part.
  virtual Status Submit(Session& session) = 0;
  /// Waits for it. What is wrong with the outcome; empty = all is well.
  virtual std::string Check() = 0;
};

/// The operation number `number`: the same kind and size on every rank, in turn every kind there
/// is. `even_ranks` is a process set of the ranks 0, 2, 4, ...
std::unique_ptr<CrowdOperation> MakeCrowdOperation(int number, const World& world,
                                                   ProcessSetId even_ranks);

}  // namespace hvl::test
