// What a leaf knows about keys by itself: values that the store allowed it to keep until FORGET,
// keys known to be missing, and which keys its own clients are writing just now. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rendezvous/engine/requests.h"

namespace ivy::store {

// A key with its space as one text.
std::string name_of(Space space, std::string_view key);

// All keys are given by their name_of().
class KeptKeys {
 public:
  struct Kept {
    std::optional<std::string> value;  // Nothing: the key is missing.
  };

  KeptKeys(std::size_t most_keys, std::size_t most_bytes)
      : most_keys_(most_keys), most_bytes_(most_bytes) {}

  // Returns null if nothing is known, also while a write of the key is under way.
  const Kept* find(const std::string& name) const;
  const std::string* value(const std::string& name) const;
  // Beyond the limits, or while a write is under way, nothing more is kept.
  void keep(const std::string& name, std::optional<std::string> value);
  void forget(const std::string& name);
  void clear();

  // A write forgets what is kept of its key.
  void begin_write(const std::string& name);
  void end_write(const std::string& name);
  bool is_being_written(const std::string& name) const { return writes_.contains(name); }

  // How often a check has found the key missing in a row.
  void count_miss(const std::string& name);
  void end_misses(const std::string& name) { misses_.erase(name); }
  int misses(const std::string& name) const;

 private:
  const std::size_t most_keys_;
  const std::size_t most_bytes_;
  std::unordered_map<std::string, Kept> kept_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, int> misses_;
  std::unordered_map<std::string, int> writes_;  // How many are under way.
};

}  // namespace ivy::store
