// What the links by SSH of one job share: which configuration counts, the keys that were read, and
// which hosts the OpenSSH client serves because libssh could not. Thread: the loop's. Lifetime: the
// context's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/links/carrier_context.h"
#include "launcher/links/ssh/ssh_session.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/options/hosts.h"
#include "launcher/streams/line_child.h"

namespace ivy {

class SshState {
 public:
  explicit SshState(CarrierContext& context);
  SshState(const SshState&) = delete;
  SshState& operator=(const SshState&) = delete;

  // IVY_SSH_CONFIG: this file alone counts, and is also given to the client by -F. Empty: the
  // user's and the system's.
  const std::string& config_path() const { return config_path_; }
  SshKeys& keys() { return keys_; }
  // The node bundle, where the configuration can be read.
  Result<NodeUpload*> upload();
  // How a host is reached, in the words of the user's own ssh. It is asked only where a
  // configuration says something; where it cannot tell, the client is needed.
  Awaitable<SshTarget> target_of(Sequence& sequence, Host host);

  // The OpenSSH client serves this host from now on.
  void prefer_client(const Host& host) { client_hosts_.insert(host.name); }
  bool prefers_client(const Host& host) const { return client_hosts_.contains(host.name); }

 private:
  struct Answer;
  bool is_configured();
  std::shared_ptr<Answer> ask_ssh(std::vector<std::string> words);
  Awaitable<SshSettings> settings_of(Sequence& sequence, std::shared_ptr<Answer> answer);
  // The first known_hosts file of the target with lines that only OpenSSH understands. Each file is
  // read once.
  std::string file_for_the_client(const SshTarget& target);

  CarrierContext& context_;
  const SshUser user_;
  const std::string config_path_;
  std::optional<bool> is_configured_;
  std::shared_ptr<Answer> defaults_;  // What ssh does without any configuration.
  SshKeys keys_;
  std::map<std::string, bool> known_hosts_checked_;
  std::set<std::string> client_hosts_;
};

}  // namespace ivy
