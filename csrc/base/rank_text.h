// How ranks are named in messages; every room uses it, so that they read alike.
#pragma once

#include <span>
#include <string>

namespace hvl {

/// "[0, 2]": each rank, as a program writes a list.
std::string RankList(std::span<const int> ranks);

/// "0, 2-5, 9" for ascending `ranks`; after some 20 ranges "and 12 more". Empty for no rank.
std::string RankRanges(std::span<const int> ranks);

/// The same with its noun: "rank 3", "ranks 0, 2-5, 9", "no rank".
std::string RanksText(std::span<const int> ranks);

}  // namespace hvl
