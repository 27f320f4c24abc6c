// Whether a sanitizer watches the tests, which makes them five to twenty times slower.
#pragma once

namespace hvl::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How often a test repeats itself with other random inputs: a fifth of the usual with a sanitizer,
/// which finds in one of them what it finds in all.
constexpr int Rounds(int usual) { return kSanitized ? (usual + 4) / 5 : usual; }

}  // namespace hvl::test
