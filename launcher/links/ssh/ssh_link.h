// The carrier by SSH through libssh, in the loop. Where libssh cannot do it, the OpenSSH client
// bears the same bytes from then on.
//
//   place among the handshakes ─ dial ─ handshake ─ host key (─ question) ─ log in ─ channel ─
//   command ─ remote_entry (─ upload) ─ up
//
// Thread: the loop's.
#pragma once

#include <memory>
#include <string>

#include "launcher/links/carrier_context.h"
#include "launcher/links/host_link.h"
#include "launcher/links/ssh/ssh_config_check.h"
#include "launcher/options/hosts.h"

namespace ivy {

class SshConnection;

class SshLink : public HostLink {
 public:
  // attempt: 0 for the first dial; a redial is not retried here, its owner dials again.
  SshLink(std::shared_ptr<CarrierContext> context, Host host, SshTarget target, Handlers handlers,
          int attempt);
  ~SshLink() override;
  SshLink(const SshLink&) = delete;
  SshLink& operator=(const SshLink&) = delete;

  void open(const OpenRequest& request) override;
  void write(std::string bytes) override;
  void close() override;

 private:
  void take_client(const std::string& because);

  std::shared_ptr<CarrierContext> context_;
  const Host host_;
  const SshTarget target_;
  Handlers handlers_;
  const int attempt_;
  OpenRequest request_;
  std::shared_ptr<SshConnection> connection_;
  std::unique_ptr<HostLink> client_;  // After libssh has given up.
};

}  // namespace ivy
