// SPDX-License-Identifier: Apache-2.0
// ivy-node: the one static binary that is sent to a host. Its first argument selects the role.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "agent/node/container/container_enter.h"
#include "agent/node/container/container_role.h"
#include "agent/node/roles/app_run.h"
#include "agent/node/roles/check.h"
#include "agent/node/roles/dial.h"
#include "agent/node/roles/drill.h"
#include "agent/node/roles/fetch.h"
#include "agent/node/roles/mpi_exec.h"
#include "agent/node/roles/notices.h"
#include "agent/node/roles/progress.h"
#include "agent/node/roles/relay.h"
#include "agent/node/roles/stage.h"
#include "agent/node/roles/warden_role.h"
#include "proto/contract/build.h"
#include "proto/contract/core_limit.h"
#include "proto/contract/exit_code.h"
#include "proto/os/process.h"
#include "rendezvous/client/client.h"
#include "rendezvous/client/token_file.h"
#include "rendezvous/server/pmi_serve.h"
#include "rendezvous/server/serve.h"

namespace ivy {
namespace {

int print_version() {
  std::printf("ivy-node %.*s build %.*s\n", static_cast<int>(version().size()), version().data(),
              static_cast<int>(build_name().size()), build_name().data());
  return 0;
}

int print_usage() {
  std::fprintf(stderr,
               "ivyrun starts ivy-node; it is not meant to be run by hand.\n"
               "usage: ivy-node --version | relay | dial | warden --job ID --host N "
               "--transport-fd N "
               "--transport local|relay [--cgroup DIR] [--record FILE] [--step PID] | rendezvous "
               "serve ...\n");
  return kExitUsage;
}

// Connects to the store that the worker's environment variables name.
Result<std::unique_ptr<store::Client>> dial_store_as_worker() {
  store::ClientOptions to;
  to.address = own_variable("IVY_STORE");
  to.job_id = own_variable("IVY_JOB_ID");
  to.generation =
      static_cast<std::uint32_t>(std::strtoul(own_variable("IVY_GENERATION").c_str(), nullptr, 10));
  to.token = IVY_TRY(store::read_token(own_variable("IVY_TOKEN_FILE")));
  return store::Client::connect(to);
}

// The store for app-run. Each wait runs on its own connection and thread.
class AppStoreClient final : public AppStore {
 public:
  ~AppStoreClient() { cancel_waits(); }

  Result<void> connect() override {
    client_ = IVY_TRY(dial_store_as_worker());
    return {};
  }
  void set(const std::string& key) override { (void)client_->set(key, "1"); }
  // Blocks while it connects; if that fails, it calls over(false) itself.
  void wait(std::vector<std::string> keys, std::function<void(bool)> over) override {
    static constexpr std::chrono::hours kAlmostForever{24 * 364};
    Result<std::unique_ptr<store::Client>> client = dial_store_as_worker();
    if (!client.ok()) return over(false);
    KeyWait& wait = waits_.emplace_back();
    wait.client = std::move(client).value();
    wait.thread =
        std::thread([to = wait.client.get(), keys = std::move(keys), over = std::move(over)] {
          over(to->wait(keys, kAlmostForever).ok());
        });
  }
  void leave() override { cancel_waits(); }

 private:
  struct KeyWait {
    std::unique_ptr<store::Client> client;
    std::thread thread;
  };

  void cancel_waits() {
    for (const KeyWait& wait : waits_) wait.client->cancel();
    for (KeyWait& wait : waits_) wait.thread.join();
    waits_.clear();
  }

  std::unique_ptr<store::Client> client_;
  std::vector<KeyWait> waits_;
};

int run_app_role(int argc, char** argv) {
  AppStoreClient store;
  return run_app(argc, argv, store);
}

int run(int argc, char** argv) {
  const std::string_view role = argc > 1 ? argv[1] : "";
  // These execute the user's programs, which must keep every worker's limit.
  if (role != "warden" && role != "mpi-exec" && role != "app-run" && role != "container-enter")
    leave_no_core();
  const std::string_view name = argc > 0 ? argv[0] : "";
  if (name.substr(name.rfind('/') + 1) == "ivy-rendezvous")
    return store::run_rendezvous(argc - 1, argv + 1);
  if (role == "rendezvous") return store::run_rendezvous(argc - 2, argv + 2);
  if (role == "mpi-exec") return run_mpi_exec(argc - 2, argv + 2);
  if (role == "app-run") return run_app_role(argc - 2, argv + 2);
  if (role == "container") return run_container(argc - 2, argv + 2);
  if (role == "container-hold") return run_container_hold(argc - 2, argv + 2);
  if (role == "container-enter") return run_container_enter(argc - 2, argv + 2);
  if (role == "pmi") return store::run_pmi(argc - 2, argv + 2);
  if (role == "warden") return run_warden_role(argc, argv);
  if (role == "relay" && argc == 2) return run_relay();
  if (role == "dial" && argc == 2) return run_dial();
  if (role == "check" && argc == 2) return run_check();
  if (role == "fetch" && argc == 2) return run_fetch();
  if (role == "progress" && argc == 2) return run_progress();
  if (role == "drill" && argc == 2) return run_drill();
  if (role == "stage" && argc == 2) return run_stage();
  if (role == "notices" && argc == 3) return run_notices(argv[2]);
  if (role == "--version" && argc == 2) return print_version();
  return print_usage();
}

}  // namespace
}  // namespace ivy

int main(int argc, char** argv) { return ivy::run(argc, argv); }
