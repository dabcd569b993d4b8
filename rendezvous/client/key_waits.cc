// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/key_waits.h"

#include <cstdlib>
#include <utility>

#include "proto/os/process.h"
#include "rendezvous/client/token_file.h"

namespace ivy::store {
namespace {

constexpr std::chrono::hours kAlmostForever{24 * 364};

Result<std::unique_ptr<Client>> dial_as_worker() {
  ClientOptions to;
  to.address = own_variable("IVY_STORE");
  to.job_id = own_variable("IVY_JOB_ID");
  to.generation =
      static_cast<std::uint32_t>(std::strtoul(own_variable("IVY_GENERATION").c_str(), nullptr, 10));
  to.token = IVY_TRY(read_token(own_variable("IVY_TOKEN_FILE")));
  return Client::connect(to);
}

}  // namespace

Result<void> KeyWaits::connect() {
  client_ = IVY_TRY(dial_as_worker());
  return {};
}

void KeyWaits::wait(std::vector<std::string> keys, std::function<void(bool)> over) {
  Result<std::unique_ptr<Client>> client = dial_as_worker();
  if (!client.ok()) return over(false);
  KeyWait& wait = waits_.emplace_back();
  wait.client = std::move(client).value();
  wait.thread =
      std::thread([to = wait.client.get(), keys = std::move(keys), over = std::move(over)] {
        over(to->wait(keys, kAlmostForever).ok());
      });
}

void KeyWaits::leave() {
  for (const KeyWait& wait : waits_) wait.client->cancel();
  for (KeyWait& wait : waits_) wait.thread.join();
  waits_.clear();
}

}  // namespace ivy::store
