// Averages a vector over all ranks. Run it alone, or with `hvlrun -np 2 ./allreduce`.
#include <horovodlite/session.h>

#include <cstdio>
#include <utility>
#include <vector>

int main() {
  auto created = hvl::Session::Create();
  if (!created.ok()) {
    std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
    return 1;
  }
  const std::unique_ptr<hvl::Session> session = std::move(created).value();

  std::vector<float> gradient(4, static_cast<float>(session->world().rank));
  hvl::Operation operation;
  operation.kind = hvl::OpKind::kAllreduce;
  operation.name = "gradient";  // the same on every rank
  operation.reduce_op = hvl::ReduceOp::kAverage;
  hvl::TensorArg tensor;
  tensor.input = tensor.output = gradient.data();
  tensor.dtype = hvl::DType::kFloat32;
  tensor.shape = {4};
  operation.tensors = {tensor};

  // Ask for it now, do something else, wait for it when it is needed.
  auto submitted = session->Submit(operation);
  if (!submitted.ok()) {
    std::fprintf(stderr, "%s\n", submitted.status().ToString().c_str());
    return 1;
  }
  hvl::Handle handle = *submitted;
  const hvl::Status status = handle.Wait();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("rank %d of %d: average %g\n", session->world().rank, session->world().size,
              static_cast<double>(gradient[0]));
  return 0;
}
