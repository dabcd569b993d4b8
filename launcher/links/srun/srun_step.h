// SPDX-License-Identifier: Apache-2.0
// The srun step of a job: starts srun when the first link waits for a host, sends ivy-node to hosts
// that lack it, and learns from srun's output which hosts the step has lost. There is one step for
// all hosts of a job. Its pure parts are in launcher/slurm/step.h.
//
//   links wait ─ addresses, version ─ listen ─ srun ─ hosts dial back ─ links are up
//
// Thread: the loop's. Lifetime: the TransportContext owns it.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/node_upload.h"
#include "launcher/links/srun/dial_back_hosts.h"
#include "launcher/links/srun/dial_back_listener.h"
#include "launcher/links/srun/step_hosts.h"
#include "launcher/slurm/step.h"
#include "launcher/streams/line_child.h"
#include "launcher/streams/sequence.h"

namespace ivy {

class TransportContext;

class SrunStep : public DialBackHosts,
                 public std::enable_shared_from_this<SrunStep>,
                 private LineChildEvents,
                 private DialBackListenerEvents {
 public:
  explicit SrunStep(TransportContext& context);
  ~SrunStep() override;
  SrunStep(const SrunStep&) = delete;
  SrunStep& operator=(const SrunStep&) = delete;

  // Waits for a host. One srun is started for all hosts that links wait for in the same turn of the
  // loop; hosts in later calls must be among them. The client must live until leave().
  void wait_for(const OpenRequest& request, const std::string& host, StepClient& client) override;
  void leave(std::uint32_t host, const StepClient& client) override { hosts_.remove(host, client); }

  // Call after the job: waits for srun to exit, then sends it SIGTERM, then kills it. Calls `done`
  // once.
  void finish(std::function<void()> done);

  Transport transport() const override { return Transport::kSrun; }
  const std::string& command_text() const override { return command_text_; }
  std::string listening_text() const override;

 private:
  struct Facts;

  // From the first waiting link to the start of srun.
  Awaitable<void> begin();
  // The end of srun: a wait, SIGTERM, SIGKILL.
  Awaitable<void> end_srun();
  Result<void> query_facts(const std::shared_ptr<Facts>& facts);
  Result<void> start(const Facts& facts);
  Result<std::vector<std::string>> own_addresses(const Facts& facts) const;
  Result<void> listen(const Facts& facts);
  Result<void> start_srun(const Facts& facts);
  StepRequest step_request(const Facts& facts);
  // DialBackListenerEvents
  void host_dialled(std::uint32_t host, std::shared_ptr<DialBackStream> stream) override;
  void signal_reported(const DialGreeting& greeting) override;
  void node_dialled(std::uint32_t, std::shared_ptr<DialBackStream>) override {}
  void peer_rejected(const std::string& address, const std::string& why) override;
  // LineChildEvents of srun
  void child_output(const std::string& line) override;
  void child_error(const std::string& line) override;
  void child_exited(const ExitStatus& status) override;
  void take_tasks_ended(const TasksEnded& ended);
  void send_bundle(const std::string& architecture);
  void write_bundle(const std::string& architecture, const Result<NodeBundle>& bundle);

  // Equal reports of a signal by several hosts within this time count as one signal.
  static constexpr std::chrono::seconds kSameSignal{2};

  TransportContext& context_;
  Sequence beginning_;
  Sequence ending_;
  const std::string key_;
  std::string job_id_;
  StepHosts hosts_;
  bool is_started_ = false;
  std::shared_ptr<LineChild> version_child_;
  std::shared_ptr<DialBackListener> listener_;
  std::shared_ptr<LineChild> srun_;
  // The line on srun's input that tells hosts where to dial and with which key.
  std::string order_;
  std::string command_text_;
  std::string stderr_tail_;  // The end of srun's standard error.
  Result<std::shared_ptr<NodeUpload>> upload_ = std::shared_ptr<NodeUpload>();  // Set by begin().
  std::map<std::string, int> bundles_sent_;  // How often the bundle of each architecture was sent.
  std::map<int, std::uint64_t> signalled_at_ns_;  // When each signal was last reported.
  std::function<void()> done_;                    // Set by finish() until it is called.
};

}  // namespace ivy
