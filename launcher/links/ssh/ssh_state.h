// SPDX-License-Identifier: Apache-2.0
// State that the SSH links of one job share: the user's account and ssh configuration, keys that
// were read, and the hosts that the OpenSSH client serves because libssh could not. A link calls
// read_account(), then target_of() if it uses libssh, then agent() to log in.
//
// Thread: the loop's. Lifetime: as long as the context.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/links/ssh/ssh_session.h"
#include "launcher/links/ssh/ssh_settings.h"
#include "launcher/links/transport_context.h"
#include "launcher/options/hosts.h"
#include "launcher/streams/line_child.h"

namespace ivy {

// Remembers whether a known_hosts file has lines that only OpenSSH understands. Reads each file
// once. Thread: any.
class KnownHostsFiles {
 public:
  // Returns the first of these files that has such lines; empty: none.
  std::string first_needing_openssh(const std::vector<std::string>& paths);

 private:
  std::mutex mutex_;
  std::map<std::string, bool> checked_;
};

class SshState {
 public:
  explicit SshState(TransportContext& context);
  SshState(const SshState&) = delete;
  SshState& operator=(const SshState&) = delete;

  // Returns IVY_SSH_CONFIG, the only configuration that counts if it is set; the client gets it
  // with -F. Empty: the user's and the system's configurations count.
  const std::string& config_path() const { return config_path_; }
  const std::shared_ptr<SshKeys>& keys() const { return keys_; }

  // Reads the user's account and ssh configuration, once for all hosts. Required by user() and
  // target_of(). `host` is the host in whose name the wait is reported.
  Awaitable<Result<void>> read_account(Sequence& sequence, std::string host);
  const SshUser& user() const { return account_->value().user; }
  // Returns how to reach a host according to the user's ssh configuration. The result is cached per
  // host. Runs ssh only if a configuration file or --ssh-args could matter. If ssh does not answer,
  // the result says to use the client, and is not cached.
  Awaitable<SshTarget> target_of(Sequence& sequence, Host host);

  // Returns a connection to the user's SSH agent, or an error of open_ssh_agent(). After a timeout,
  // the agent is not asked again until as much time has passed again.
  Awaitable<Result<Descriptor>> agent(Sequence& sequence, std::string host, SshTarget target,
                                      bool is_redial);
  // Makes agent() fail with `why` until `duration` has passed.
  void note_silent_agent(const std::string& path, const std::string& why,
                         std::chrono::nanoseconds duration);

  // Keeps the host key and the kind of login for redials, which then read no files.
  void remember_login(const Host& host, const SshTarget::Login& login);
  // Makes the OpenSSH client serve this host from now on.
  void prefer_client(const Host& host) { client_hosts_.insert(host.name); }
  bool prefers_client(const Host& host) const { return client_hosts_.contains(host.name); }

 private:
  struct Answer;
  struct Account {
    SshUser user;
    bool is_configured = false;  // A configuration file contains more than comments.
  };
  // An agent that does not answer, and until when it is not queried.
  struct SilentAgent {
    std::int64_t until_ns = 0;
    std::string why;
  };
  Awaitable<SshTarget> make_target(Sequence& sequence, Host host);
  std::shared_ptr<Answer> run_ssh_config(std::vector<std::string> words);
  Awaitable<SshSettings> settings_of(Sequence& sequence, std::shared_ptr<Answer> answer);

  TransportContext& context_;
  const std::string config_path_;
  bool is_reading_account_ = false;
  std::optional<Result<Account>> account_;
  std::vector<Arrival<bool>> waiting_for_account_;
  std::shared_ptr<Answer> defaults_;  // OpenSSH's settings without any configuration.
  const std::shared_ptr<SshKeys> keys_ = std::make_shared<SshKeys>();
  const std::shared_ptr<KnownHostsFiles> known_hosts_ = std::make_shared<KnownHostsFiles>();
  std::map<std::string, SshTarget> targets_;          // By user, name and port as typed.
  std::map<std::string, SilentAgent> silent_agents_;  // By the path of the agent's socket.
  std::set<std::string> client_hosts_;
};

}  // namespace ivy
