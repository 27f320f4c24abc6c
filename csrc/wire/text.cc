#include "csrc/wire/text.h"

namespace hvl::wire {

bool IsUtf8(std::string_view text) {
  // Table 3-7 of the Unicode standard: the second byte's range depends on the first.
  for (std::size_t i = 0; i < text.size();) {
    const auto at = [&text](std::size_t index) { return static_cast<unsigned char>(text[index]); };
    const unsigned lead = at(i);
    if (lead < 0x80U) {
      ++i;
      continue;
    }
    const std::size_t length = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
    if (lead < 0xC2U || lead > 0xF4U || i + length > text.size()) return false;
    const unsigned low = lead == 0xE0U ? 0xA0U : lead == 0xF0U ? 0x90U : 0x80U;
    const unsigned high = lead == 0xEDU ? 0x9FU : lead == 0xF4U ? 0x8FU : 0xBFU;
    if (at(i + 1) < low || at(i + 1) > high) return false;
    for (std::size_t j = i + 2; j < i + length; ++j) {
      if ((at(j) & 0xC0U) != 0x80U) return false;
    }
    i += length;
  }
  return true;
}

std::string CleanText(std::string_view text) {
  std::string clean(text);
  if (IsUtf8(clean)) return clean;
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) >= 0x80U) c = '?';
  }
  return clean;
}

}  // namespace hvl::wire
