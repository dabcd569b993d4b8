#include "launcher/links/ssh/ssh_state.h"

#include <fstream>
#include <memory>
#include <sstream>

namespace ivy {

SshState& SshState::of(CarrierContext& context) {
  if (!context.ssh()) context.keep_ssh(std::make_shared<SshState>(context));
  return *context.ssh();
}

const SshConfigFiles& SshState::config() {
  if (!config_) config_ = read_ssh_config_files();
  return *config_;
}

Result<NodeUpload*> SshState::upload() {
  IVY_CHECK(config().readable);
  return context_.node_upload();
}

bool SshState::known_hosts_needs_client(const std::string& path) {
  const auto checked = known_hosts_checked_.find(path);
  if (checked != known_hosts_checked_.end()) return checked->second;
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return known_hosts_checked_[path] = ivy::known_hosts_needs_client(text.str());
}

}  // namespace ivy
