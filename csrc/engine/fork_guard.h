// Tells a forked child from the process that started the engine, at the price of one load: a child
// has none of the engine's threads, so it must not touch anything of it.
#pragma once

namespace hvl::engine {

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  /// True in every process but the one that made this object. Any thread.
  bool InChild() const;

 private:
  const volatile char* page_ = nullptr;  ///< zeroed by the kernel in a child; null: compare ids
  long process_id_ = 0;
};

}  // namespace hvl::engine
