// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/client.h"

namespace ivy::store {

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  auto connection = IVY_TRY(SharedConnection::connect(options));
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

Result<Client::Names> Client::list(std::string_view prefix, Limit limit) {
  Names all;
  std::string after;
  while (true) {
    Keys page = IVY_TRY(query(List{std::string(prefix), 0, after}, {.limit = limit}));
    for (std::string& key : page.keys) all.push_back(std::move(key));
    if (!page.more) return all;
    // Each page must advance the list, or the loop would never end.
    if (page.keys.empty() || all.back() <= after || all.size() > kMaxKeys)
      return connection_->reject("an endless list of keys");
    after = all.back();
  }
}

Result<Client::Round> Client::barrier_without_losses(std::string_view name, std::uint32_t size,
                                                     std::uint32_t member, Milliseconds timeout) {
  Barrier barrier{std::string(name), size, member, new_arrival()};
  barrier.ends_with_a_loss = true;
  const std::int64_t round = IVY_TRY(query(std::move(barrier), {.timeout = timeout})).value;
  if (round >= 0) return Round{static_cast<std::uint64_t>(round), std::nullopt};
  return Round{0, static_cast<std::uint32_t>(-1 - round)};
}

}  // namespace ivy::store
