// An Output that also passes its messages and bytes to a follower. Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/screen/output.h"

namespace ivy {

class FollowedOutput final : public Output {
 public:
  struct Listener {
    std::function<void(int rank, int stream, std::string_view bytes, bool end)> bytes;
    std::function<void(std::string_view text)> message;
  };
  explicit FollowedOutput(std::unique_ptr<Output> output) : output_(std::move(output)) {}
  void listen(Listener listener) { listener_ = std::move(listener); }

  void begin(std::uint32_t generation, const std::vector<RankPlace>& places, int max_attempts,
             Ready ready) override {
    output_->begin(generation, places, max_attempts, std::move(ready));
  }
  void worker_bytes(int rank, int stream, std::string_view bytes, bool end) override {
    if (listener_.bytes) listener_.bytes(rank, stream, bytes, end);
    output_->worker_bytes(rank, stream, bytes, end);
  }
  void say(std::string_view text) override {
    if (listener_.message) listener_.message(text);
    output_->say(text);
  }
  void status_line(const std::string& text) override { output_->status_line(text); }
  bool has_terminal() const override { return output_->has_terminal(); }
  std::string stderr_tail(int rank) const override { return output_->stderr_tail(rank); }
  bool is_just_shown(int rank) const override { return output_->is_just_shown(rank); }
  std::string log_path(int rank, int stream) const override {
    return output_->log_path(rank, stream);
  }
  void finish(std::function<void()> done) override { output_->finish(std::move(done)); }
  void limit_finish(std::chrono::milliseconds limit) override { output_->limit_finish(limit); }
  std::vector<std::string> complaints() const override { return output_->complaints(); }
  std::string console_failure() const override { return output_->console_failure(); }

 private:
  std::unique_ptr<Output> output_;
  Listener listener_;
};

}  // namespace ivy
