// What the links of one job share: where the node binary is, and how many handshakes may be under way.
// Thread: the loop's. Lifetime: outlives every link (they hold it by shared pointer).
#pragma once

#include <boost/asio/io_context.hpp>
#include <string>

#include "launcher/options.h"

namespace ivy {

class CarrierContext {
 public:
  CarrierContext(boost::asio::io_context& loop, const Options& options, std::string node_binary)
      : loop_(loop), options_(options), node_binary_(std::move(node_binary)) {}
  CarrierContext(const CarrierContext&) = delete;
  CarrierContext& operator=(const CarrierContext&) = delete;

  boost::asio::io_context& loop() { return loop_; }
  const Options& options() const { return options_; }
  const std::string& node_binary() const { return node_binary_; }

 private:
  boost::asio::io_context& loop_;
  const Options options_;
  const std::string node_binary_;
};

}  // namespace ivy
