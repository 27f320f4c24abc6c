// What a plug-in file shows to the core: one function in C. Plug-ins ship with the core that they
// were built with, so behind it are the interfaces of this tree, and nothing has to be translated.
#pragma once

namespace hvl::plugin {

/// Stays as it is for ever, so that a file of any version can be asked which one it is.
struct Exported {
  const char* version;    ///< HVL_PLUGIN_VERSION of its build
  const char* interface;  ///< Interface::kInterface
  void* object;           ///< an Interface*, which lives as long as the process
};

}  // namespace hvl::plugin

/// A plug-in defines it once: `HVL_PLUGIN_ENTRY() { static const Exported exported = ...; return
/// &exported; }`. Throws nothing.
#define HVL_PLUGIN_ENTRY()                                                       \
  extern "C" __attribute__((visibility("default"))) const hvl::plugin::Exported* \
  hvl_plugin_entry() noexcept
