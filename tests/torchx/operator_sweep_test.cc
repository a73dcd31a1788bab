// A sweep over operators: managed arguments give the bits of unmanaged ones.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "torchx/fake_storage.h"

namespace ullage::torchx {
namespace {

using at::Tensor;

// The tensors that operators get. All but the indices are managed in the managed run.
struct Arguments {
  Tensor x = Random({4, 6}, 1).abs().mul(0.3).add(0.05).clamp_max(0.95);  // in every domain
  Tensor y = Random({4, 6}, 2);
  Tensor v = Random({6}, 3);
  Tensor w = Random({3, 6}, 4);
  Tensor square = at::eye(5) * 3 + Random({5, 5}, 5).mul(0.2);
  Tensor batch = Random({2, 4, 6}, 6);
  Tensor batch2 = Random({2, 6, 3}, 7);
  Tensor image = Random({2, 4, 6, 6}, 8);
  Tensor kernel = Random({4, 2, 3, 3}, 9);
  Tensor bias = Random({4}, 10);
  Tensor line = Random({2, 4, 9}, 11);
  Tensor scale = Random({4}, 12).abs().add(0.5);
  Tensor index = at::tensor({2, 0, 3, 1}, at::kLong);
  Tensor grid_index = at::tensor({0, 5, 2, 1, 3, 4}, at::kLong).repeat({4, 1});
  Tensor mask = at::tensor({1, 0, 1, 1, 0, 1}, at::kLong).to(at::kBool).repeat({4, 1});

  std::vector<Tensor> Floats() const {
    return {x, y, v, w, square, batch, batch2, image, kernel, bias, line, scale};
  }
};

struct Results : std::vector<Tensor> {
  Results(const Tensor& tensor) : std::vector<Tensor>{tensor} {}
  Results(std::vector<Tensor> tensors) : std::vector<Tensor>(std::move(tensors)) {}
  template <typename... T>
  Results(const std::tuple<T...>& tensors) {
    std::apply([this](const auto&... each) { (push_back(each), ...); }, tensors);
  }
};

using A = const Arguments&;

struct Entry {
  const char* name;
  std::function<Results(A)> run;
};

// What writes to its arguments runs under no-grad, and the arguments are compared afterwards.
const std::vector<Entry>& PureEntries() {
  static const std::vector<Entry> entries = {
      // One element at a time.
      {"abs", [](A a) -> Results { return at::abs(a.y); }},
      {"acos", [](A a) -> Results { return at::acos(a.x); }},
      {"asin", [](A a) -> Results { return at::asin(a.x); }},
      {"atan", [](A a) -> Results { return at::atan(a.y); }},
      {"asinh", [](A a) -> Results { return at::asinh(a.y); }},
      {"atanh", [](A a) -> Results { return at::atanh(a.x); }},
      {"ceil", [](A a) -> Results { return at::ceil(a.y); }},
      {"clamp", [](A a) -> Results { return at::clamp(a.y, -0.5, 0.5); }},
      {"clamp_tensor", [](A a) -> Results { return at::clamp(a.y, a.x.neg(), a.x); }},
      {"cos", [](A a) -> Results { return at::cos(a.y); }},
      {"cosh", [](A a) -> Results { return at::cosh(a.y); }},
      {"digamma", [](A a) -> Results { return at::digamma(a.x); }},
      {"erf", [](A a) -> Results { return at::erf(a.y); }},
      {"erfc", [](A a) -> Results { return at::erfc(a.y); }},
      {"erfinv", [](A a) -> Results { return at::erfinv(a.x); }},
      {"exp", [](A a) -> Results { return at::exp(a.y); }},
      {"exp2", [](A a) -> Results { return at::exp2(a.y); }},
      {"expm1", [](A a) -> Results { return at::expm1(a.y); }},
      {"floor", [](A a) -> Results { return at::floor(a.y); }},
      {"frac", [](A a) -> Results { return at::frac(a.y); }},
      {"lgamma", [](A a) -> Results { return at::lgamma(a.x); }},
      {"log", [](A a) -> Results { return at::log(a.x); }},
      {"log10", [](A a) -> Results { return at::log10(a.x); }},
      {"log1p", [](A a) -> Results { return at::log1p(a.x); }},
      {"log2", [](A a) -> Results { return at::log2(a.x); }},
      {"logit", [](A a) -> Results { return at::logit(a.x); }},
      {"nan_to_num", [](A a) -> Results { return at::nan_to_num(a.y); }},
      {"neg", [](A a) -> Results { return at::neg(a.y); }},
      {"reciprocal", [](A a) -> Results { return at::reciprocal(a.x); }},
      {"relu", [](A a) -> Results { return at::relu(a.y); }},
      {"round", [](A a) -> Results { return at::round(a.y); }},
      {"rsqrt", [](A a) -> Results { return at::rsqrt(a.x); }},
      {"sigmoid", [](A a) -> Results { return at::sigmoid(a.y); }},
      {"sign", [](A a) -> Results { return at::sign(a.y); }},
      {"sin", [](A a) -> Results { return at::sin(a.y); }},
      {"sinc", [](A a) -> Results { return at::sinc(a.y); }},
      {"sqrt", [](A a) -> Results { return at::sqrt(a.x); }},
      {"square", [](A a) -> Results { return at::square(a.y); }},
      {"tan", [](A a) -> Results { return at::tan(a.y); }},
      {"tanh", [](A a) -> Results { return at::tanh(a.y); }},
      {"trunc", [](A a) -> Results { return at::trunc(a.y); }},
      {"celu", [](A a) -> Results { return at::celu(a.y); }},
      {"elu", [](A a) -> Results { return at::elu(a.y); }},
      {"gelu", [](A a) -> Results { return at::gelu(a.y); }},
      {"gelu_tanh", [](A a) -> Results { return at::gelu(a.y, "tanh"); }},
      {"glu", [](A a) -> Results { return at::glu(a.y); }},
      {"hardshrink", [](A a) -> Results { return at::hardshrink(a.y); }},
      {"hardsigmoid", [](A a) -> Results { return at::hardsigmoid(a.y); }},
      {"hardswish", [](A a) -> Results { return at::hardswish(a.y); }},
      {"leaky_relu", [](A a) -> Results { return at::leaky_relu(a.y); }},
      {"log_sigmoid", [](A a) -> Results { return at::log_sigmoid(a.y); }},
      {"mish", [](A a) -> Results { return at::mish(a.y); }},
      {"prelu", [](A a) -> Results { return at::prelu(a.image, a.bias); }},
      {"selu", [](A a) -> Results { return at::selu(a.y); }},
      {"silu", [](A a) -> Results { return at::silu(a.y); }},
      {"softplus", [](A a) -> Results { return at::softplus(a.y); }},
      {"softshrink", [](A a) -> Results { return at::softshrink(a.y); }},
      {"threshold", [](A a) -> Results { return at::threshold(a.y, 0.1, 0.2); }},
      {"dropout", [](A a) -> Results { return at::dropout(a.y, 0.4, true); }},
      {"to_bf16", [](A a) -> Results { return a.y.to(at::kBFloat16); }},
      // Two or three.
      {"add", [](A a) -> Results { return at::add(a.x, a.v, 2); }},
      {"add_itself", [](A a) -> Results { return a.x + a.x; }},
      {"add_scalar", [](A a) -> Results { return a.x + 3; }},
      {"addcdiv", [](A a) -> Results { return at::addcdiv(a.y, a.v, a.x); }},
      {"addcmul", [](A a) -> Results { return at::addcmul(a.y, a.v, a.x); }},
      {"atan2", [](A a) -> Results { return at::atan2(a.y, a.x); }},
      {"copysign", [](A a) -> Results { return at::copysign(a.x, a.y); }},
      {"div", [](A a) -> Results { return at::div(a.v, a.x); }},
      {"div_floor", [](A a) -> Results { return at::div(a.v, a.x, "floor"); }},
      {"eq", [](A a) -> Results { return at::eq(a.x, a.y); }},
      {"fmod", [](A a) -> Results { return at::fmod(a.y, a.x); }},
      {"hypot", [](A a) -> Results { return at::hypot(a.x, a.y); }},
      {"isclose", [](A a) -> Results { return at::isclose(a.x, a.y); }},
      {"lerp", [](A a) -> Results { return at::lerp(a.x, a.y, 0.3); }},
      {"logaddexp", [](A a) -> Results { return at::logaddexp(a.x, a.y); }},
      {"lt", [](A a) -> Results { return at::lt(a.x, a.v); }},
      {"maximum", [](A a) -> Results { return at::maximum(a.x, a.y); }},
      {"minimum", [](A a) -> Results { return at::minimum(a.x, a.v); }},
      {"mul", [](A a) -> Results { return at::mul(a.x, a.v); }},
      {"pow", [](A a) -> Results { return at::pow(a.x, a.y); }},
      {"pow_scalar", [](A a) -> Results { return at::pow(a.x, 1.5); }},
      {"remainder", [](A a) -> Results { return at::remainder(a.y, a.x); }},
      {"rsub", [](A a) -> Results { return at::rsub(a.y, a.x); }},
      {"sub", [](A a) -> Results { return at::sub(a.y, a.v); }},
      {"where", [](A a) -> Results { return at::where(a.mask, a.x, a.y); }},
      {"xlogy", [](A a) -> Results { return at::xlogy(a.y, a.x); }},
      // Reductions.
      {"all", [](A a) -> Results { return at::all(a.x > 0.2); }},
      {"amax", [](A a) -> Results { return at::amax(a.y, at::IntArrayRef{1}); }},
      {"amin", [](A a) -> Results { return at::amin(a.y, at::IntArrayRef{0}); }},
      {"aminmax", [](A a) -> Results { return at::aminmax(a.y.detach()); }},
      {"argmax", [](A a) -> Results { return at::argmax(a.y, 1); }},
      {"cummax", [](A a) -> Results { return at::cummax(a.y, 1); }},
      {"cumprod", [](A a) -> Results { return at::cumprod(a.y, 1); }},
      {"cumsum", [](A a) -> Results { return at::cumsum(a.y, 0); }},
      {"kthvalue", [](A a) -> Results { return at::kthvalue(a.y, 2, 1); }},
      {"log_softmax", [](A a) -> Results { return at::log_softmax(a.y, 1); }},
      {"logcumsumexp", [](A a) -> Results { return at::logcumsumexp(a.y, 1); }},
      {"logsumexp", [](A a) -> Results { return at::logsumexp(a.y, at::IntArrayRef{0, 1}); }},
      {"max_dim", [](A a) -> Results { return at::max(a.y, 1); }},
      {"mean", [](A a) -> Results { return at::mean(a.y, at::IntArrayRef{1}); }},
      {"median", [](A a) -> Results { return at::median(a.y); }},
      {"norm", [](A a) -> Results { return at::norm(a.y, 2, at::IntArrayRef{1}); }},
      {"linalg_vector_norm", [](A a) -> Results { return at::linalg_vector_norm(a.y); }},
      {"prod", [](A a) -> Results { return at::prod(a.y); }},
      {"quantile", [](A a) -> Results { return at::quantile(a.y, 0.3, 1); }},
      {"softmax", [](A a) -> Results { return at::softmax(a.y, 0); }},
      {"sort", [](A a) -> Results { return at::sort(a.y, 1, true); }},
      {"std", [](A a) -> Results { return at::std(a.y, at::IntArrayRef{1}, 1); }},
      {"sum", [](A a) -> Results { return at::sum(a.y.t(), at::IntArrayRef{0}); }},
      {"topk", [](A a) -> Results { return at::topk(a.y, 3); }},
      {"trace", [](A a) -> Results { return at::trace(a.square); }},
      {"var_mean", [](A a) -> Results { return at::var_mean(a.y); }},
      // Products of matrices.
      {"addbmm", [](A a) -> Results { return at::addbmm(a.x.narrow(1, 0, 3), a.batch, a.batch2); }},
      {"addmm", [](A a) -> Results { return at::addmm(a.bias.narrow(0, 0, 3), a.x, a.w.t()); }},
      {"addmv", [](A a) -> Results { return at::addmv(a.bias, a.x, a.v); }},
      {"addr", [](A a) -> Results { return at::addr(a.x, a.bias, a.v); }},
      {"baddbmm", [](A a) -> Results { return at::baddbmm(a.v.narrow(0, 0, 3), a.batch, a.batch2); }},
      {"bmm", [](A a) -> Results { return at::bmm(a.batch, a.batch2); }},
      {"cdist", [](A a) -> Results { return at::cdist(a.x, a.w); }},
      {"cholesky", [](A a) -> Results { return at::linalg_cholesky(at::mm(a.square, a.square.t())); }},
      {"det", [](A a) -> Results { return at::det(a.square); }},
      {"dot", [](A a) -> Results { return at::dot(a.v, a.x[1]); }},
      {"einsum", [](A a) -> Results { return at::einsum("bij,bjk->ik", {a.batch, a.batch2}); }},
      {"inverse", [](A a) -> Results { return at::inverse(a.square); }},
      {"kron", [](A a) -> Results { return at::kron(a.v, a.bias); }},
      {"linear", [](A a) -> Results { return at::linear(a.batch, a.w); }},
      {"lu_solve", [](A a) -> Results { return at::linalg_solve(a.square, a.square.t()); }},
      {"matmul", [](A a) -> Results { return at::matmul(a.batch, a.v); }},
      {"mm_itself", [](A a) -> Results { return at::mm(a.square, a.square); }},
      {"mv", [](A a) -> Results { return at::mv(a.x, a.v); }},
      {"outer", [](A a) -> Results { return at::outer(a.v, a.bias); }},
      {"tensordot", [](A a) -> Results { return at::tensordot(a.batch, a.w, {2}, {1}); }},
      {"attention",
       [](A a) -> Results {
         const Tensor q = a.image.narrow(1, 0, 2);
         return at::scaled_dot_product_attention(q, a.image.narrow(1, 2, 2), q);
       }},
      // Indexing and moving.
      {"cat", [](A a) -> Results { return at::cat({a.x, a.w, a.x}); }},
      {"clone", [](A a) -> Results { return a.x.t().clone(); }},
      {"diag", [](A a) -> Results { return at::diag(a.v, 1); }},
      {"embedding", [](A a) -> Results { return at::embedding(a.x, a.index); }},
      {"embedding_bag",
       [](A a) -> Results {
         return std::get<0>(at::embedding_bag(a.x, a.index, at::tensor({0, 2}, at::kLong)));
       }},
      {"flip", [](A a) -> Results { return at::flip(a.x, {1}); }},
      {"gather", [](A a) -> Results { return at::gather(a.x, 1, a.grid_index); }},
      {"index", [](A a) -> Results { return a.x.index({a.index, a.index}); }},
      {"index_mask", [](A a) -> Results { return a.x.index({a.mask}); }},
      {"index_add", [](A a) -> Results { return at::index_add(a.x, 0, a.index, a.y); }},
      {"index_select", [](A a) -> Results { return at::index_select(a.x, 0, a.index); }},
      {"masked_fill", [](A a) -> Results { return at::masked_fill(a.x, a.mask, -1); }},
      {"masked_select", [](A a) -> Results { return at::masked_select(a.x, a.mask); }},
      {"nonzero", [](A a) -> Results { return at::nonzero(a.y > 0); }},
      {"pad", [](A a) -> Results { return at::pad(a.x, {1, 2}); }},
      {"pad_reflect", [](A a) -> Results { return at::pad(a.line, {1, 2}, "reflect"); }},
      {"repeat", [](A a) -> Results { return a.v.repeat({2, 3}); }},
      {"repeat_interleave", [](A a) -> Results { return at::repeat_interleave(a.v, 3); }},
      {"roll", [](A a) -> Results { return at::roll(a.x, {1}, {0}); }},
      {"scatter", [](A a) -> Results { return at::scatter(a.x, 1, a.grid_index, a.y); }},
      {"scatter_add", [](A a) -> Results { return at::scatter_add(a.x, 1, a.grid_index, a.y); }},
      {"select_scatter", [](A a) -> Results { return at::select_scatter(a.x, a.v, 0, 2); }},
      {"slice_scatter", [](A a) -> Results { return at::slice_scatter(a.x, a.w, 0, 1, 4); }},
      {"stack", [](A a) -> Results { return at::stack({a.x, a.y}, 1); }},
      {"take", [](A a) -> Results { return at::take(a.x, a.index); }},
      {"take_along_dim", [](A a) -> Results { return at::take_along_dim(a.x, a.grid_index, 1); }},
      {"tensor_split", [](A a) -> Results { return at::tensor_split(a.x, 3, 1); }},
      {"tile", [](A a) -> Results { return at::tile(a.v, {2}); }},
      {"tril", [](A a) -> Results { return at::tril(a.x); }},
      {"unfold", [](A a) -> Results { return a.line.unfold(2, 3, 2); }},
      // Norms, convolutions, pools.
      {"batch_norm",
       [](A a) -> Results {
         return at::batch_norm(a.image, a.scale, a.bias, {}, {}, true, 0.1, 1e-5, false);
       }},
      {"group_norm", [](A a) -> Results { return at::group_norm(a.image, 2, a.scale, a.bias); }},
      {"instance_norm",
       [](A a) -> Results {
         return at::instance_norm(a.image, a.scale, a.bias, {}, {}, true, 0.1, 1e-5, false);
       }},
      {"layer_norm", [](A a) -> Results { return at::layer_norm(a.batch, {6}, a.v, a.v); }},
      {"rms_norm", [](A a) -> Results { return at::rms_norm(a.batch, {6}, a.v); }},
      {"renorm", [](A a) -> Results { return at::renorm(a.x, 2, 0, 0.5); }},
      {"conv1d", [](A a) -> Results { return at::conv1d(a.line, a.kernel[0].view({1, 2, 9}).repeat({2, 2, 1})); }},
      {"conv2d",
       [](A a) -> Results { return at::conv2d(a.image, a.kernel, a.bias, 1, 1, 1, 2); }},
      {"conv_transpose2d",
       [](A a) -> Results { return at::conv_transpose2d(a.image, a.kernel, {}, 2); }},
      {"avg_pool2d", [](A a) -> Results { return at::avg_pool2d(a.image, 2); }},
      {"adaptive_avg_pool2d", [](A a) -> Results { return at::adaptive_avg_pool2d(a.image, {3, 2}); }},
      {"max_pool2d", [](A a) -> Results { return at::max_pool2d(a.image, 2); }},
      {"upsample_bilinear2d",
       [](A a) -> Results { return at::upsample_bilinear2d(a.image, {9, 9}, false); }},
      {"im2col", [](A a) -> Results { return at::im2col(a.image, {3, 3}, {1, 1}, {0, 0}, {1, 1}); }},
      {"pixel_shuffle", [](A a) -> Results { return at::pixel_shuffle(a.image, 2); }},
      // Losses.
      {"bce", [](A a) -> Results { return at::binary_cross_entropy(a.x, a.x.detach()); }},
      {"bce_logits",
       [](A a) -> Results { return at::binary_cross_entropy_with_logits(a.y, a.x.detach()); }},
      {"cosine_similarity", [](A a) -> Results { return at::cosine_similarity(a.x, a.y); }},
      {"cross_entropy", [](A a) -> Results { return at::cross_entropy_loss(a.y, a.index); }},
      {"huber_loss", [](A a) -> Results { return at::huber_loss(a.x, a.y); }},
      {"kl_div", [](A a) -> Results { return at::kl_div(a.y, a.x); }},
      {"l1_loss", [](A a) -> Results { return at::l1_loss(a.x, a.y); }},
      {"mse_loss", [](A a) -> Results { return at::mse_loss(a.x, a.y); }},
      {"nll_loss", [](A a) -> Results { return at::nll_loss(a.y, a.index); }},
      {"smooth_l1_loss", [](A a) -> Results { return at::smooth_l1_loss(a.x, a.y); }},
      {"triplet", [](A a) -> Results { return at::triplet_margin_loss(a.x, a.y, a.x.flip(0)); }},
      // Lists.
      {"foreach_add", [](A a) -> Results { return at::_foreach_add({a.x, a.v}, {a.y, a.v}); }},
      {"foreach_mul", [](A a) -> Results { return at::_foreach_mul({a.x, a.v}, 2); }},
      {"foreach_norm", [](A a) -> Results { return at::_foreach_norm({a.x, a.v, a.w}); }},
      {"foreach_sqrt", [](A a) -> Results { return at::_foreach_sqrt({a.x, a.scale}); }},
  };
  return entries;
}

const std::vector<Entry>& WritingEntries() {
  static const std::vector<Entry> entries = {
      {"add_", [](A a) -> Results { return a.x.add_(a.v); }},
      {"addcmul_", [](A a) -> Results { return a.x.addcmul_(a.y, a.v); }},
      {"addmm_", [](A a) -> Results { return a.x.narrow(1, 0, 3).addmm_(a.y, a.w.t()); }},
      {"baddbmm_",
       [](A a) -> Results { return a.batch.narrow(2, 0, 3).baddbmm_(a.batch, a.batch2); }},
      {"clamp_", [](A a) -> Results { return a.y.clamp_(-1, 1); }},
      {"copy_", [](A a) -> Results { return a.x.copy_(a.v); }},
      {"copy_converting",
       [](A a) -> Results {
         return a.x.copy_(a.index.view({4, 1}));
       }},
      {"exp_", [](A a) -> Results { return a.x.t().exp_(); }},
      {"fill_", [](A a) -> Results { return a.x.fill_(2); }},
      {"fill_tensor", [](A a) -> Results { return a.x.fill_(a.v[2]); }},
      {"fill_diagonal_", [](A a) -> Results { return a.square.fill_diagonal_(1); }},
      {"index_add_", [](A a) -> Results { return a.x.index_add_(0, a.index, a.y); }},
      {"index_copy_", [](A a) -> Results { return a.x.index_copy_(0, a.index, a.y); }},
      {"index_fill_", [](A a) -> Results { return a.x.index_fill_(0, a.index, 3); }},
      {"index_put_", [](A a) -> Results { return a.x.index_put_({a.index}, a.y); }},
      {"lerp_", [](A a) -> Results { return a.x.lerp_(a.y, 0.1); }},
      {"masked_fill_", [](A a) -> Results { return a.x.masked_fill_(a.mask, 4); }},
      {"masked_scatter_", [](A a) -> Results { return a.x.masked_scatter_(a.mask, a.y); }},
      {"mul_", [](A a) -> Results { return a.x.mul_(a.x); }},
      {"normal_", [](A a) -> Results { return a.x.normal_(); }},
      {"put_", [](A a) -> Results { return a.x.put_(a.index, a.bias); }},
      {"relu_", [](A a) -> Results { return at::relu_(const_cast<Tensor&>(a.y)); }},
      {"scatter_", [](A a) -> Results { return a.x.scatter_(1, a.grid_index, a.y); }},
      {"scatter_reduce_",
       [](A a) -> Results { return a.x.scatter_reduce_(1, a.grid_index, a.y, "amax"); }},
      {"tril_", [](A a) -> Results { return a.square.tril_(); }},
      {"uniform_", [](A a) -> Results { return a.x.uniform_(); }},
      {"zero_", [](A a) -> Results { return a.x.zero_(); }},
      {"add_out", [](A a) -> Results { return at::add_out(const_cast<Tensor&>(a.x), a.y, a.v); }},
      {"mm_out",
       [](A a) -> Results {
         return at::mm_out(const_cast<Tensor&>(a.square), a.square, a.square);
       }},
      {"sort_out",
       [](A a) -> Results {
         Tensor order = at::empty({4, 6}, at::kLong);
         return at::sort_out(const_cast<Tensor&>(a.x), order, a.y);
       }},
      {"foreach_add_",
       [](A a) -> Results {
         at::_foreach_add_({a.x, a.v}, {a.y, a.v});
         return a.v;
       }},
      {"foreach_addcdiv_",
       [](A a) -> Results {
         at::_foreach_addcdiv_({a.y, a.v}, {a.x, a.v}, {a.x, a.v.abs() + 1}, 0.5);
         return a.y;
       }},
      {"foreach_copy_",
       [](A a) -> Results {
         at::_foreach_copy_({a.x, a.scale}, {a.y, a.bias});
         return a.scale;
       }},
      {"foreach_lerp_",
       [](A a) -> Results {
         at::_foreach_lerp_({a.x}, {a.y}, 0.25);
         return a.x;
       }},
      {"foreach_zero_",
       [](A a) -> Results {
         at::_foreach_zero_({a.x, a.y});
         return a.x;
       }},
      {"fused_adamw_",
       [](A a) -> Results {
         at::_fused_adamw_({a.x}, {a.y}, {a.batch[0]}, {a.image[0][0].narrow(0, 0, 4)}, {},
                           {at::ones({})}, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false);
         return a.x;
       }},
      {"batch_norm_statistics",
       [](A a) -> Results {
         return at::batch_norm(a.image, {}, {}, a.bias, a.scale, true, 0.1, 1e-5, false);
       }},
      {"instance_norm_statistics",
       [](A a) -> Results {
         return at::instance_norm(a.image, {}, {}, a.bias, a.scale, true, 0.1, 1e-5, false);
       }},
  };
  return entries;
}

void ExpectSame(const Results& managed, const Results& plain) {
  ASSERT_EQ(managed.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(BitwiseEqual(managed[i], plain[i])) << "result " << i;
  }
}

void ExpectAllLetGo(const FakeStorages& storages) {
  int acquires = 0;
  for (const auto& storage : storages) {
    EXPECT_EQ(storage->pins(), 0) << storage->name();
    acquires += storage->acquires();
  }
  EXPECT_GT(acquires, 0);
}

TEST(OperatorSweep, OperatorsGiveTheValuesAndGradientsOfUnmanagedOnes) {
  for (const Entry& entry : PureEntries()) {
    SCOPED_TRACE(entry.name);
    const Arguments plain, managed;
    for (const Tensor& tensor : plain.Floats()) tensor.set_requires_grad(true);
    for (const Tensor& tensor : managed.Floats()) tensor.set_requires_grad(true);
    const FakeStorages storages = Manage(managed.Floats());
    const auto run = [&](const Arguments& arguments) {
      at::manual_seed(7);
      Results results = entry.run(arguments);
      Tensor loss;
      for (const Tensor& result : results) {
        if (!result.requires_grad()) continue;
        const Tensor part = (result.to(at::kFloat) * 0.5).sum();
        loss = loss.defined() ? loss + part : part;
      }
      if (loss.defined()) loss.backward();
      for (const Tensor& tensor : arguments.Floats()) results.push_back(tensor.grad());
      return results;
    };
    const Results expected = run(plain);
    ExpectSame(run(managed), expected);
    ExpectAllLetGo(storages);
    for (const auto& storage : storages) EXPECT_EQ(storage->writes(), 0) << storage->name();
  }
}

TEST(OperatorSweep, WhatOperatorsWriteIsKept) {
  at::NoGradGuard no_grad;
  for (const Entry& entry : WritingEntries()) {
    SCOPED_TRACE(entry.name);
    const Arguments plain, managed;
    const FakeStorages storages = Manage(managed.Floats());
    at::manual_seed(7);
    const Results expected = entry.run(plain);
    at::manual_seed(7);
    const Results actual = entry.run(managed);
    ExpectSame(actual, expected);
    int writes = 0;
    for (std::size_t i = 0; i < storages.size(); ++i) {
      EXPECT_TRUE(BitwiseEqual(storages[i]->Values(), plain.Floats()[i])) << storages[i]->name();
      writes += storages[i]->writes();
    }
    EXPECT_GT(writes, 0);
    ExpectAllLetGo(storages);
  }
}

TEST(OperatorSweep, IsWide) {
  EXPECT_GE(PureEntries().size() + WritingEntries().size(), 200u);
}

}  // namespace
}  // namespace ullage::torchx
