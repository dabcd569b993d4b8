// SPDX-License-Identifier: Apache-2.0
// State that the SSH links of one job share: the ssh configuration of the user, keys that were
// read, and the hosts that the OpenSSH client serves because libssh could not. Thread: the loop's.
// Lifetime: as long as the context.
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
  std::string first_for_the_client(const std::vector<std::string>& paths);

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
  // Returns the bundles. Reads the account and its ssh configuration first.
  Awaitable<Result<NodeUpload*>> upload(Sequence& sequence, std::string host);
  // Returns how to reach a host, as the user's own ssh reports it. ssh is run only if a
  // configuration file or --ssh-args may matter; if it does not answer, the client must be used,
  // and the next call runs it again. Else only the first call for a host reads files or runs ssh.
  // Call after upload().
  Awaitable<SshTarget> target_of(Sequence& sequence, Host host);

  // Returns a connection to the user's SSH agent, or an error of open_ssh_agent(). An agent that
  // did not answer is not queried again for as long as it was waited for.
  Awaitable<Result<Descriptor>> agent(Sequence& sequence, std::string host, SshTarget target,
                                      bool is_redial);
  // Makes agent() fail with `why` for this time.
  void note_silent_agent(const std::string& path, const std::string& why,
                         std::chrono::nanoseconds time);

  // Keeps the host key and the kind of login for redials, which then read no files.
  void remember_login(const Host& host, const SshTarget::Login& login);
  // Returns the user's account. Call after upload().
  const SshUser& user() const { return account_->value().user; }
  // From now on, the OpenSSH client serves this host.
  void prefer_client(const Host& host) { client_hosts_.insert(host.name); }
  bool prefers_client(const Host& host) const { return client_hosts_.contains(host.name); }

 private:
  struct Answer;
  // The user's account, and whether its ssh configuration says anything.
  struct Account {
    SshUser user;
    bool is_configured = false;
  };
  // An agent that does not answer, and until when it is not queried.
  struct SilentAgent {
    std::int64_t until_ns = 0;
    std::string why;
  };
  Awaitable<Result<void>> read_account(Sequence& sequence, std::string host);
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
