#include "csrc/net/rank_card.h"

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"

namespace hvl::net {

std::string EncodeCard(const RankCard& card) {
  ByteWriter out;
  out.Text(card.address);
  out.Text(card.leader_address);
  out.Text(card.data_address);
  out.Integer(card.pid);
  out.Text(card.pid_scope);
  out.Text(card.host_id);
  out.Text(card.host_name);
  out.Text(card.blob);
  return out.Take();
}

Result<RankCard> DecodeCard(std::string_view bytes, int rank) {
  ByteReader in(bytes);
  RankCard card;
  card.address = in.Text();
  card.leader_address = in.Text();
  card.data_address = in.Text();
  card.pid = in.Integer<std::uint32_t>();
  card.pid_scope = in.Text();
  card.host_id = in.Text();
  card.host_name = in.Text();
  card.blob = in.Text();
  if (in.ok() && in.remaining() == 0) return card;
  return Status(StatusCode::kMismatch,
                Format("rank {} published something else than an address: all ranks must run the "
                       "same version of horovodlite",
                       rank),
                rank);
}

}  // namespace hvl::net
