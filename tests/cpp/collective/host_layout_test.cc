// How the ranks of several hosts line up in columns.
#include "csrc/collective/host_layout.h"

#include <catch2/catch.hpp>
#include <set>

#include "csrc/collective/part.h"

namespace hvl::collective {
namespace {

using Ranks = std::vector<int>;

TEST_CASE("hosts with as many ranks have a column for each") {
  const HostLayout layout(Ranks{0, 0, 0, 1, 1, 1});
  CHECK(layout.ranks() == 6);
  CHECK(layout.hosts() == 2);
  CHECK(layout.ends() == Ranks{3, 6});
  CHECK(layout.columns() == 3);
  CHECK(layout.Column(0) == Ranks{0, 3});
  CHECK(layout.Column(2) == Ranks{2, 5});
  for (int rank = 0; rank < 6; ++rank) {
    CHECK(layout.HostOf(rank) == rank / 3);
    CHECK(layout.ColumnOf(rank) == rank % 3);
  }
}

TEST_CASE("hosts are told apart by number only, as those of a part have gaps") {
  const HostLayout layout(Ranks{2, 5, 5, 9});
  CHECK(layout.hosts() == 3);
  CHECK(layout.ends() == Ranks{1, 3, 4});
  CHECK(layout.Column(0) == Ranks{0, 1, 3});
  CHECK(layout.ColumnOf(2) == -1);
}

TEST_CASE("every rank is in a column or stands behind a rank of its host that is") {
  for (const Ranks& hosts : {Ranks{0}, Ranks{0, 0, 0, 1}, Ranks{0, 1, 1, 1, 1, 1},
                             Ranks{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2}}) {
    const HostLayout layout(hosts);
    for (int host = 0; host < layout.hosts(); ++host) {
      CHECK(layout.Member(0, host) == layout.First(host));
      CHECK(layout.Member(layout.columns(), host) == layout.End(host));
      std::set<int> members;
      for (int column = 0; column < layout.columns(); ++column) {
        const int member = layout.Member(column, host);
        CHECK(layout.ColumnOf(member) == column);
        CHECK(layout.HostOf(member) == host);
        CHECK(layout.Member(column + 1, host) > member);
        members.insert(member);
      }
      CHECK(std::ssize(members) == layout.columns());
    }
  }
}

TEST_CASE("groups of a part are what its ranks leave of those of the world") {
  const Ranks ends = {2, 4, 7};
  CHECK(PartGroupEnds(Ranks{0, 1, 2, 3, 4, 5, 6}, ends) == ends);
  CHECK(PartGroupEnds(Ranks{0, 6}, ends) == Ranks{1, 2});
  CHECK(PartGroupEnds(Ranks{1, 2, 3}, ends) == Ranks{1, 3});
  CHECK(PartGroupEnds(Ranks{4, 6}, ends) == Ranks{2});
  CHECK(PartGroupEnds(Ranks{3}, ends) == Ranks{1});
  CHECK(PartGroupEnds(Ranks{0, 5}, Ranks()).empty());
}

}  // namespace
}  // namespace hvl::collective
