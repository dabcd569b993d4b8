// The srun step of a job: starts it when the first host is wanted, sends ivy-node to hosts that
// lack it, hands each host's connection to the link that waits for it, and knows which hosts the
// step has lost. One for all hosts of a job; its pure parts are in launcher/slurm/step.h.
//
//   links wait ─ addresses, version ─ we listen ─ srun ─ hosts dial back ─ links are up
//
// Thread: the loop's. Lifetime: CarrierContext's, which outlives it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/peer_lookup.h"
#include "launcher/links/srun/dial_back_door.h"
#include "launcher/links/srun/srun_child.h"
#include "launcher/options/hosts.h"
#include "launcher/slurm/step.h"

namespace ivy {

class CarrierContext;

class SrunStep : public std::enable_shared_from_this<SrunStep> {
 public:
  // One link that waits for its host's connection, or has it. None is called after leave().
  struct Guest {
    std::function<void(std::shared_ptr<DialBackStream>)> came;
    std::function<void(const LinkDown&)> failed;
    std::function<void(const RemoteText&)> progress;
    // It has a connection, and its host has made another one: the first is not heard any more.
    std::function<void()> came_again;
  };

  explicit SrunStep(CarrierContext& context);
  ~SrunStep();
  SrunStep(const SrunStep&) = delete;
  SrunStep& operator=(const SrunStep&) = delete;

  // Hosts that are waited for in one turn of the loop are started by one srun; later ones must be
  // among them. The guest outlives its stay.
  void wait_for(const OpenRequest& request, const std::string& host, Guest& guest);
  void leave(std::uint32_t host, const Guest& guest);

  // Slurm has signalled the step: the signal, and whether every process of the step has it. What
  // several hosts report within kSameSignal is one signal.
  static constexpr std::chrono::seconds kSameSignal{2};
  void set_signal_handler(std::function<void(int signal, bool whole_tree)> handler) {
    on_signal_ = std::move(handler);
  }
  // The job is over: srun may end by itself, then it is asked to, then it is killed. Calls back
  // once.
  void finish(std::function<void()> done);

  // For people: srun's words, and where we listen ("10.0.0.1:41234").
  const std::string& command_text() const { return command_text_; }
  std::string listening_text() const;

 private:
  struct Place {
    std::string name;
    Guest* waiting = nullptr;
    Guest* served = nullptr;
    std::shared_ptr<DialBackStream> parked;  // Came while no link waited for it.
    bool has_come = false;
    std::string words;             // What it printed before it had come.
    std::optional<LinkDown> lost;  // Why it takes part no more.
    std::map<std::string, int> bundles_asked;
  };

  void start();
  void learn_version();
  void look_up_addresses();
  void begin_when_known();
  Result<void> open_door();
  Result<void> start_srun();
  Result<std::vector<std::string>> own_addresses() const;
  void deliver(std::uint32_t host, std::shared_ptr<DialBackStream> stream);
  void take_signal(const DialGreeting& greeting);
  void take_answer(const std::string& line);
  void take_error(const std::string& line);
  void send_bundle(const std::string& architecture);
  void srun_ended(const ExitStatus& status);
  void lose(Place& place, const LinkDown& down);
  void lose_all(const LinkDown& down);
  void progress(const RemoteText& text);
  Place* place_of(const std::string& node);
  void press_on(int step);

  CarrierContext& context_;
  boost::asio::io_context& loop_;
  const std::string key_;
  std::string job_id_;
  std::map<std::uint32_t, Place> places_;
  std::vector<std::shared_ptr<PeerLookup>> lookups_;
  std::vector<std::string> found_addresses_;
  std::size_t lookups_left_ = 0;
  std::shared_ptr<SrunChild> version_child_;
  std::optional<SlurmVersion> version_;
  bool version_known_ = false;
  std::shared_ptr<DialBackDoor> door_;
  std::shared_ptr<SrunChild> srun_;
  std::string order_;
  std::string command_text_;
  std::string said_;  // The end of srun's standard error.
  std::map<std::string, int> bundles_sent_;
  std::size_t hosts_to_come_ = 0;
  bool is_started_ = false;
  std::function<void(int, bool)> on_signal_;
  std::map<int, std::chrono::steady_clock::time_point> signalled_at_;
  std::function<void()> done_;
  boost::asio::steady_timer timer_;
};

}  // namespace ivy
