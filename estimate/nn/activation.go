package nn

// ReLU is torch.nn.ReLU; it keeps its output. InPlace overwrites the input with it.
type ReLU struct{ InPlace bool }

// Class is a layer that has no settings, by the name of its class, as Python prints it. Those with a star may also work in
// place: Class("SiLU(inplace=True)").
//
//   - GELU, with or without the tanh approximation, keeps its input. So do SiLU*, ReLU6*, Hardswish*, Hardsigmoid* and
//     Mish*, and in place a copy of it; LeakyReLU* and ELU* keep it too, but in place their output.
//   - Sigmoid, Tanh, Softmax and LogSoftmax keep their output.
//   - Dropout1d, Dropout2d and Dropout3d drop whole channels of a sample, and keep a number for each.
//     torchvision's StochasticDepth drops whole samples, and keeps a number a sample.
//   - Identity keeps nothing.
//   - Losses, which make their own targets: MSELoss, HuberLoss, SmoothL1Loss and BCEWithLogitsLoss keep their input and the
//     target, L1Loss the difference, KLDivLoss the target, and NLLLoss, over (batch, classes), its input and the targets.
type Class string

// PReLU is torch.nn.PReLU, with that many slopes, one for all channels or one for each; 0 means 1. It keeps its input.
type PReLU int
