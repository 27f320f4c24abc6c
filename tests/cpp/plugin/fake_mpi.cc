// As much of an MPI library as is looked at before it is used.
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): the names are MPI's
extern "C" {

__attribute__((visibility("default"))) int MPI_Init_thread() { return 0; }

__attribute__((visibility("default"))) int MPI_Get_library_version(char* text, int* length) {
  constexpr char kVersion[] = "Fake MPI 1.0\nand more";
  std::memcpy(text, kVersion, sizeof kVersion);
  *length = sizeof kVersion - 1;
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
