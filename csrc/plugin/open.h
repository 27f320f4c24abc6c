// Opens plug-ins: parts of the runtime that need libraries which a machine may not have.
#pragma once

#include <string>
#include <string_view>

#include "csrc/plugin/exported.h"
#include "horovodlite/status.h"

namespace hvl::plugin {

/// "0.1.0, interfaces 2f9c01ab, GNU 12.2.0": two files with the same text can share C++ objects.
const char* BuildVersion();

/// The folder `plugins` next to the file that this code is in.
std::string DefaultFolder();

/// What the dynamic loader says about its last failure in this thread.
std::string LoaderError();

/// Loads exactly this file, which stays loaded. NotSupported when there is none, when it is no
/// plug-in for `interface`, or when it was built with other interfaces: the message has the path,
/// what was wanted and found, the loader's words and the cure.
Result<void*> OpenFile(const std::string& path, std::string_view interface);

template <typename Interface>
Result<Interface*> Open(const std::string& path) {
  HVL_ASSIGN_OR_RETURN(void* const object, OpenFile(path, Interface::kInterface));
  return static_cast<Interface*>(object);
}

}  // namespace hvl::plugin
