// Texts in messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hvl::wire {

/// True when `text` is well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates).
bool IsUtf8(std::string_view text);

/// `text`; if it is not UTF-8, with every byte replaced that is not ASCII.
std::string CleanText(std::string_view text);

}  // namespace hvl::wire
