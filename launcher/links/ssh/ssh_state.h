// What the links by SSH of one job share: the user's configuration, the keys that were read, and
// which hosts the OpenSSH client serves because libssh could not. Thread: the loop's. Lifetime: the
// context's.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "launcher/links/carrier_context.h"
#include "launcher/links/ssh/ssh_config_files.h"
#include "launcher/links/ssh/ssh_session.h"
#include "launcher/options/hosts.h"

namespace ivy {

class SshState {
 public:
  // The one of this job, made when it is first asked for.
  static SshState& of(CarrierContext& context);

  explicit SshState(CarrierContext& context) : context_(context) {}
  SshState(const SshState&) = delete;
  SshState& operator=(const SshState&) = delete;

  // Read once.
  const SshConfigFiles& config();
  SshKeys& keys() { return keys_; }
  // The node bundle, where the configuration can be read.
  Result<NodeUpload*> upload();
  // True when this known_hosts file uses what libssh does not understand. Each file is read once.
  bool known_hosts_needs_client(const std::string& path);

  // The OpenSSH client serves this host from now on.
  void prefer_client(const Host& host) { client_hosts_.insert(host.name); }
  bool prefers_client(const Host& host) const { return client_hosts_.contains(host.name); }

 private:
  CarrierContext& context_;
  std::optional<SshConfigFiles> config_;
  SshKeys keys_;
  std::map<std::string, bool> known_hosts_checked_;
  std::set<std::string> client_hosts_;
};

}  // namespace ivy
