// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job without ivyrun find each other: rank 0 starts a store (private_store.h)
// and says where, the others find it and connect.
//
//   kAddress     it listens at the address that all know; there is no endpoint to find
//   kFile        it listens on all addresses of its host; the endpoint is in the file
//   kHostFile    it listens on 127.0.0.1; the endpoint is in a file of this host
//   kTorchStore  it listens on the address towards MASTER_ADDR; the endpoint is in torchrun's store
//
// An endpoint of an earlier run is not believed: it has a token and a job id of its own, its store
// takes nobody once its rank 0 has gone, and rank 0 removes its file as soon as all ranks have
// come. Without an endpoint (kAddress) the token is the content of IVY_TOKEN_FILE, and without that
// file no secret at all: then whoever reaches the port before the last rank can join. Rank 0 hands
// all that have joined a job id and a token for what they say to each other.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/join/endpoint_file.h"
#include "comm/join/identity.h"
#include "comm/join/private_store.h"
#include "proto/contract/status.h"
#include "rendezvous/client/client.h"

namespace ivy::comm {

struct Bootstrapped {
  std::unique_ptr<PrivateStore> private_store;  // Null on every rank but 0.
  std::unique_ptr<EndpointFile> endpoint_file;  // Rank 0's, if there is one.
  std::unique_ptr<store::Client> client;
  std::string job_id;  // Both: random, known to those who have met, and for their connections.
  std::string token;
  std::uint32_t generation = 0;
  std::string
      // Rank 0's address with a port: ranks listen on the interface towards it.
      first_host_address;
};

// `generation`: how many worlds this process has had before; equal on all ranks. DeadlineExceeded:
// names what rank 0 has not done. AlreadyExists: the port, the file or this rank is taken.
// Unauthenticated: something else listens there, or one with another token.
Result<Bootstrapped> bootstrap(const Identity& identity, std::uint32_t generation,
                               std::chrono::milliseconds timeout);

}  // namespace ivy::comm
