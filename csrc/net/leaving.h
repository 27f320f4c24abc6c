// When a leader may go. Frames between ranks of different hosts travel along a tree (host_tree.h),
// so a leader whose session is shut down goes on passing them on until nobody needs that.
//
// Terms: a branch is a link that such frames take. A rank *has finished* when nobody waits for what
// it sends any more: it has said goodbye, or knows that nothing is negotiated any more.
//
// Invariant: "no more" goes over a branch, once in each direction, when all ranks on the sender's
// side of it have finished. So a rank says it to a branch when it has finished itself and has heard
// it from all its other branches. It begins at the ends of the tree, and on each branch comes after
// all frames that anybody waits for. Who has heard it from all branches and said it to all of them
// has nothing to pass on any more. A branch that is lost counts as one that has said it.
//
// Cost: two empty frames per branch and session, none on worlds of one host; at most two ways
// through the depth of the tree after the last rank has finished. Source: waves in trees, in G.
// Tel, Introduction to Distributed Algorithms, 2nd ed., 6.2 ("the tree algorithm").
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace hvl::net {

/// No IO. Owned by the thread that polls.
class Leaving {
 public:
  Leaving() = default;
  explicit Leaving(std::span<const int> branches) {
    for (const int peer : branches) branches_[peer] = {};
  }

  /// This rank has finished. True the first time.
  bool Finish();
  /// "No more" has come over a branch. False when it has before, or is no branch.
  bool Hear(int peer);
  void Lose(int peer) { branches_.erase(peer); }
  /// The branches that are to be told now, each once.
  std::vector<int> TakeDue();
  /// Nothing will have to be passed on any more.
  bool over() const;
  /// Who has not said it yet, for messages.
  std::vector<int> Missing() const;

 private:
  struct Branch {
    bool heard = false;
    bool told = false;
  };

  std::map<int, Branch> branches_;  // those that are not lost
  bool finished_ = false;
};

}  // namespace hvl::net
